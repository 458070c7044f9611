package testenv

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

var (
	portsMu sync.Mutex
	ports   = map[int]bool{}
)

// FreePort returns a port of 127.0.0.1 on which nothing listens, and never the
// same one twice. It lies below the range from which the system takes the local
// ports of outgoing connections, because one of those could occupy it meanwhile.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func freePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		if ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l.Close()
		ports[port] = true
		return port, nil
	}
	return 0, errors.New("no free port on 127.0.0.1")
}
