package testenv

import (
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

var (
	portsMu sync.Mutex
	ports   = map[int]bool{}
)

// FreePort returns a port of 127.0.0.1 that belongs to this process until it ends,
// and never the same one twice. A server can be started on it, stopped and started
// again: neither another test process nor an outgoing connection gets the port
// meanwhile.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// freePort looks below the range from which the system takes the local ports of
// outgoing connections.
func freePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		if !ports[port] && reserve(port) == nil {
			ports[port] = true
			return port, nil
		}
	}
	return 0, errors.New("no free port on 127.0.0.1")
}

// reserve binds a socket to the port and leaves it open until the process ends. The
// socket does not listen, so a connection to the port is refused as long as no server
// runs there. It is bound without SO_REUSEADDR, which fails if any other socket has
// the port. Then it gets the option: Linux lets a server, which has it too, bind a
// port that is held by such a socket. Other systems do not, so there the port is
// only known to have been free.
func reserve(port int) error {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd) // a server must not keep the port when this process has ended
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte(net.IPv4(127, 0, 0, 1).To4())})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil || runtime.GOOS != "linux" {
		syscall.Close(fd)
	}
	return err
}
