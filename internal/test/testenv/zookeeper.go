package testenv

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// zookeeperJar names in its manifest all other jars that the server needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper is a real ZooKeeper server. Sessions time out after 0.4 s at the
// earliest, for tests that wait for that, and after 10 minutes at the latest.
type ZooKeeper struct {
	Addr string // host:port
	*server
}

var sharedZooKeeper shared[ZooKeeper]

// SharedZooKeeper returns the server of the test process, without any nodes of
// earlier tests.
func SharedZooKeeper(t testing.TB) *ZooKeeper {
	t.Helper()
	z := sharedZooKeeper.get(always, func() *ZooKeeper { return startZooKeeper(t) })
	z.revive(t)
	z.clean(t)
	return z
}

func startZooKeeper(t testing.TB) *ZooKeeper {
	t.Helper()
	java := program(t, "java", "default-jre-headless")
	if _, err := os.Stat(zookeeperJar); err != nil {
		missing(t, zookeeperJar, "zookeeper")
	}
	z := &ZooKeeper{}
	z.server = startServer(t, "zookeeper", func(s *server) {
		file := filepath.Join(s.dir, "zoo.cfg")
		text := strings.Join([]string{
			"tickTime=200",
			"minSessionTimeout=400",
			"maxSessionTimeout=600000",
			"maxClientCnxns=0",
			"admin.enableServer=false",
			"clientPortAddress=127.0.0.1",
			fmt.Sprintf("clientPort=%d", s.port),
			"dataDir=" + s.dir,
			"4lw.commands.whitelist=conf,ruok,srvr,mntr",
			"forceSync=no",    // what is written need not survive a power cut
			"preAllocSize=64", // KB; the default is 64 MB
		}, "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.argv = []string{java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"-cp", zookeeperJar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file}
		s.ready = func() error { return zookeeperReady(s) }
	})
	z.Addr = z.addr()
	return z
}

// zookeeperReady asks the server for its configuration, in which the name of the
// folder shows that it is not another one on the same port.
func zookeeperReady(s *server) error {
	c, err := net.DialTimeout("tcp", s.addr(), answerLimit)
	if err != nil {
		return err
	}
	defer c.Close()
	// A server that is still starting may accept the connection and never answer.
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "conf"); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if !strings.Contains(string(answer), "dataDir="+s.dir) {
		return fmt.Errorf("unexpected answer %q", answer)
	}
	return nil
}

// Client returns a connection with a session that outlives any pause of the test
// process, closed with the test.
func (z *ZooKeeper) Client(t testing.TB) *zk.Conn {
	t.Helper()
	conn, err := z.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// sessionTimeout is that of the sessions which do not have to end by themselves.
const sessionTimeout = 2 * time.Minute

func (z *ZooKeeper) connect() (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{z.Addr}, sessionTimeout,
		zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	limit := time.After(Hang)
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

// clean removes all nodes except ZooKeeper's own.
func (z *ZooKeeper) clean(t testing.TB) {
	t.Helper()
	conn, err := z.connect()
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
}

// removeNode removes a node and everything below it. Ephemeral nodes may vanish
// meanwhile, because their session ends.
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
