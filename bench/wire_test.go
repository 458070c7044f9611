package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// wire is a proxy before Redis that counts the commands of clients.
//
// A round trip is a burst: commands that arrive on one connection before Redis has replied to the
// first of them, a single command or a pipeline of hundreds. Concurrent bursts on two connections
// count as two. Commands that set up or maintain a connection do not count.
type wire struct {
	addr            string
	trips, commands atomic.Int64
}

// upkeep are commands that drivers send by themselves.
var upkeep = []string{"AUTH", "CLIENT", "CLUSTER", "COMMAND", "HELLO", "INFO", "PING", "READONLY", "ROLE", "SELECT"}

func newWire(t testing.TB, target string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: listener.Addr().String()}
	var wg sync.WaitGroup
	var clients []net.Conn
	accept := func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			clients = append(clients, client)
			wg.Go(func() { w.forward(client, target) })
		}
	}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		accept()
	}()
	t.Cleanup(func() {
		listener.Close()
		<-accepting
		for _, c := range clients { // some peers never close theirs
			c.Close()
		}
		wg.Wait()
	})
	return w
}

// forward copies both directions until one of them ends.
func (w *wire) forward(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	var waiting atomic.Bool // for the reply to a burst
	var wg sync.WaitGroup
	wg.Go(func() {
		defer client.Close()
		chunk := make([]byte, 64<<10)
		for {
			n, err := server.Read(chunk)
			if n > 0 {
				waiting.Store(false)
				if _, err := client.Write(chunk[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	// Forwarded only after counting, so that the reply cannot arrive earlier.
	var unsent bytes.Buffer
	requests := bufio.NewReaderSize(io.TeeReader(client, &unsent), 64<<10)
	for {
		name, err := command(requests)
		if err != nil {
			break
		}
		if counted(name) {
			w.commands.Add(1)
			if waiting.CompareAndSwap(false, true) {
				w.trips.Add(1)
			}
		}
		if requests.Buffered() > 0 {
			continue
		}
		if _, err := unsent.WriteTo(server); err != nil {
			break
		}
	}
	server.Close()
	wg.Wait()
}

func counted(name string) bool {
	for _, u := range upkeep {
		if strings.EqualFold(name, u) {
			return false
		}
	}
	return true
}

// command reads one command and returns its first word.
func command(r *bufio.Reader) (name string, err error) {
	n, err := length(r, '*')
	if err != nil {
		return "", err
	}
	for i := range n {
		size, err := length(r, '$')
		if err != nil {
			return "", err
		}
		if i == 0 {
			word := make([]byte, size)
			if _, err := io.ReadFull(r, word); err != nil {
				return "", err
			}
			name = string(word)
			size = 0
		}
		if _, err := r.Discard(size + len("\r\n")); err != nil {
			return "", err
		}
	}
	return name, nil
}

func length(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("RESP: missing %q", kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
