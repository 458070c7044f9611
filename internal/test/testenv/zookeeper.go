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

// zookeeperJar names in its manifest all other jars that the server needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper is a real ZooKeeper server. Sessions time out after 0.4 s at the
// earliest, for tests that wait for that, and after 10 minutes at the latest.
type ZooKeeper struct {
	Addr string // host:port
	*server
}

var sharedZooKeeper shared[ZooKeeper]

// SharedZooKeeper returns the server of the test process, with the nodes that
// earlier tests have left. Package zklock, whose module has a client, removes them.
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
