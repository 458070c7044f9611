package testenv

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// NATS is a real NATS server. It stores its streams (JetStream) in files, so they survive Kill and
// Restart.
type NATS struct {
	URL string
	*server
}

// StartNATS starts a server that is killed when the test ends.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	path := program(t, "nats-server", "nats-server")
	n := &NATS{}
	n.server = startServer(t, "nats", func(s *server) {
		s.argv = []string{path, "-a", "127.0.0.1", "-p", strconv.Itoa(s.port), "-js", "-sd", s.dir, "-n",
			filepath.Base(s.dir)}
		s.ready = func() error { return natsReady(s) }
	})
	n.claim(t)
	n.URL = "nats://" + n.addr()
	return n
}

// natsReady returns nil if the server replies and is s. It compares the name in the INFO message
// that the server sends to each new client, because another server may be on the same port.
func natsReady(s *server) error {
	c, err := net.DialTimeout("tcp", s.addr(), replyLimit)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(replyLimit))
	info, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(info, "INFO ") || !strings.Contains(info, strconv.Quote(filepath.Base(s.dir))) {
		return fmt.Errorf("unexpected reply %q", info)
	}
	return nil
}
