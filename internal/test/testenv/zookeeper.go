package testenv

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// zookeeperJar is the path of ZooKeeper's jar. Its manifest names all other jars that the server
// needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper is a real ZooKeeper server. Session timeouts can be from 0.4 s, for tests that wait for
// the end of a session, to 10 minutes.
type ZooKeeper struct {
	Addr string // host:port
	*server
}

var sharedZooKeeper shared[ZooKeeper]

// SharedZooKeeper returns the server of the test process. It may hold nodes from earlier tests. The
// tests of package zklock, whose module has a client, remove them.
func SharedZooKeeper(t testing.TB) *ZooKeeper {
	t.Helper()
	z := sharedZooKeeper.get(always, func() *ZooKeeper { return startZooKeeper(t) })
	z.revive(t)
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
			"forceSync=no",    // writes need not survive a power failure
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

// zookeeperReady returns nil if the server replies and is s. It compares the data folder in the
// server's configuration, because another server may be on the same port.
func zookeeperReady(s *server) error {
	c, err := net.DialTimeout("tcp", s.addr(), replyLimit)
	if err != nil {
		return err
	}
	defer c.Close()
	// A server that is still starting may accept the connection and never reply.
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "conf"); err != nil {
		return err
	}
	reply, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if !strings.Contains(string(reply), "dataDir="+s.dir) {
		return fmt.Errorf("unexpected reply %q", reply)
	}
	return nil
}
