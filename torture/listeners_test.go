package torture

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Other processes of a large fleet are subscriptions without a Cache. With them announcements are
// gathered. They subscribe again after each fault.

// listening returns the number of other listeners of a run: TORTURE_LISTENERS, or so many that each
// server gathers announcements.
func listening(topology string) int {
	if n, err := strconv.Atoi(os.Getenv("TORTURE_LISTENERS")); err == nil {
		return n
	}
	return map[string]int{"single": 20, "sentinel": 40, "cluster": 90}[topology]
}

// listeners are n subscriptions. They count the announcements of their first server.
type listeners struct {
	n                                 int
	messages, gathered, announcements atomic.Int64
}

// listen starts n listeners of the caches with a prefix, and returns when all have subscribed. They
// end with the test.
func listen(t *testing.T, servers []*testenv.Redis, prefix string, n int) *listeners {
	t.Helper()
	all := &listeners{n: n}
	topic := invalidation.Topic(prefix, 0)
	stop := make(chan struct{})
	var subscribed, running sync.WaitGroup
	for i := range n {
		l := &listener{addr: servers[i%len(servers)].Addr, topic: topic}
		if i == 0 {
			l.counts = all
		}
		subscribed.Add(1)
		running.Go(func() {
			l.run(stop, sync.OnceFunc(subscribed.Done))
		})
	}
	t.Cleanup(func() { close(stop); running.Wait() })
	subscribed.Wait()
	return all
}

// listener is one subscription.
type listener struct {
	addr, topic string
	counts      *listeners // nil: it only reads
}

// run subscribes again and again until stop is closed.
func (l *listener) run(stop <-chan struct{}, subscribed func()) {
	for {
		if conn, err := net.DialTimeout("tcp", l.addr, time.Second); err == nil {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				l.read(conn, subscribed)
			}()
			select {
			case <-ended:
				conn.Close()
			case <-stop:
				conn.Close()
				<-ended
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-stop:
			return
		}
	}
}

// read subscribes, and reads until the connection ends.
func (l *listener) read(conn net.Conn, subscribed func()) {
	if _, err := fmt.Fprintf(conn, "*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n", len(l.topic), l.topic); err != nil {
		return
	}
	r := bufio.NewReaderSize(conn, 16<<10)
	for range 6 { // *3, $9, subscribe, $…, the topic, :1
		if _, err := r.ReadSlice('\n'); err != nil {
			return
		}
	}
	subscribed()
	if l.counts == nil {
		_, _ = io.Copy(io.Discard, r)
		return
	}
	for {
		payload, err := readMessage(r)
		if err != nil {
			return
		}
		if m, err := invalidation.Decode(payload); err == nil {
			l.counts.count(&m)
		}
	}
}

// readMessage reads a published message, and returns its payload.
func readMessage(r *bufio.Reader) (payload []byte, err error) {
	if _, err := r.ReadSlice('\n'); err != nil { // *3
		return nil, err
	}
	for range 3 { // "message", the topic, the payload
		head, err := r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(string(head[1 : len(head)-2]))
		if err != nil {
			return nil, err
		}
		payload = slices.Grow(payload[:0], n+2)[:n+2]
		if _, err := io.ReadFull(r, payload); err != nil {
			return nil, err
		}
	}
	return payload[:len(payload)-2], nil
}

func (l *listeners) count(m *invalidation.Message) {
	parts := int64(0)
	for range m.Parts() {
		parts++
	}
	l.messages.Add(1)
	l.announcements.Add(parts)
	if parts > 1 {
		l.gathered.Add(1)
	}
}
