package zklock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// server returns the ZooKeeper of the test process, without any nodes of earlier tests.
func server(t testing.TB) *testenv.ZooKeeper {
	t.Helper()
	z := testenv.SharedZooKeeper(t)
	conn, err := connect(z)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	names, _, err := conn.Children("/")
	for _, name := range names {
		if name != "zookeeper" && err == nil {
			err = removeNode(conn, "/"+name)
		}
	}
	if err != nil {
		t.Fatalf("clean ZooKeeper: %v", err)
	}
	return z
}

// client returns a connection with a session that outlives any pause of the test process, closed
// with the test.
func client(t testing.TB, z *testenv.ZooKeeper) *zk.Conn {
	t.Helper()
	conn, err := connect(z)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// sessionTimeout is for sessions that need not end by themselves.
const sessionTimeout = 2 * time.Minute

func connect(z *testenv.ZooKeeper) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{z.Addr}, sessionTimeout, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	limit := time.After(testenv.Hang)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn, nil
			}
		case <-limit:
			conn.Close()
			return nil, errors.New("no session with ZooKeeper at " + z.Addr)
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// removeNode removes a node and everything below it. Ephemeral nodes may vanish at the same time
// because their session ends.
func removeNode(conn *zk.Conn, path string) error {
	names, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for _, name := range names {
		if err := removeNode(conn, path+"/"+name); err != nil {
			return err
		}
	}
	if err := conn.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return nil
}

func TestServerIsEmptyWhenHandedOut(t *testing.T) {
	conn := client(t, server(t))
	for _, path := range []string{"/a", "/a/b"} {
		if _, err := conn.Create(path, []byte("x"), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Create("/e", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	server(t)
	if names, _, err := conn.Children("/"); err != nil || len(names) != 1 {
		t.Errorf("nodes %v, %v", names, err)
	}
}
