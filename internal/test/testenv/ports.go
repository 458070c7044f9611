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

// FreePort returns a port of 127.0.0.1 that is reserved for this process until it ends. It never
// returns the same port twice. A server on the port can be stopped and restarted: until the process
// ends, neither another test process nor an outgoing connection gets the port.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// freePort tries ports below the range that the system uses for outgoing connections.
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

// reserve binds a socket to the port and leaves it open until the process ends. The socket does not
// listen, so connections to the port are refused until a server runs there. reserve binds without
// SO_REUSEADDR, which fails if any other socket has the port. Then it sets the option, because
// Linux lets a server that sets it too bind the same port. Other systems do not, so there reserve
// closes the socket, and the port is only known to have been free.
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
