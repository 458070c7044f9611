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

// NATS is a real NATS server that keeps its streams (JetStream) in files, so that
// they survive Kill and Restart.
type NATS struct {
	URL string
	*server
}

// StartNATS starts a server, which ends with the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	path := program(t, "nats-server", "nats-server")
	n := &NATS{}
	n.server = startServer(t, "nats", func(s *server) {
		s.argv = []string{path, "-a", "127.0.0.1", "-p", strconv.Itoa(s.port), "-js", "-sd", s.dir, "-n", filepath.Base(s.dir)}
		s.ready = func() error { return natsReady(s) }
	})
	n.own(t)
	n.URL = "nats://" + n.addr()
	return n
}

// natsReady reads what the server says to every client at first, which has its
// name, so that it is not another one on the same port.
func natsReady(s *server) error {
	c, err := net.DialTimeout("tcp", s.addr(), answerLimit)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(answerLimit))
	info, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(info, "INFO ") || !strings.Contains(info, strconv.Quote(filepath.Base(s.dir))) {
		return fmt.Errorf("unexpected answer %q", info)
	}
	return nil
}
