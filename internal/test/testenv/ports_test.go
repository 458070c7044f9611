package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

func init() {
	RegisterChild("ports", func() {
		var port int
		fmt.Sscan(os.Getenv("PORT"), &port)
		fmt.Println(reserve(port))
	})
}

// A port stays this process's own, whether a server runs on it or not.
func TestPortIsReserved(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	port := FreePort(t)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	taken := func() {
		t.Helper()
		c := SpawnChild(t, "ports", "PORT="+strconv.Itoa(port))
		if line, err := c.ReadLine(Hang); line != syscall.EADDRINUSE.Error() || err != nil {
			t.Errorf("another process that wants the port: %s, %v", line, err)
		}
	}
	for range 3 {
		if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				c.Close()
			}
			t.Errorf("no process listens: %v", err)
		}
		taken()
		listener, err := net.Listen("tcp", address)
		check(t, err)
		c, err := net.Dial("tcp", address)
		check(t, err)
		taken()
		c.Close()
		check(t, listener.Close())
	}
}
