package fleet

import (
	"bufio"
	"encoding/json"
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

// The listeners of a fleet are raw subscriptions in a child process. They are much lighter than
// processes with a Cache, so that a thousand of them leave Redis most of a small machine. All of
// them read the bytes that they receive, and some of them decode the announcements.

func init() { testenv.RegisterChild("listeners", listenersChild) }

// decoding is the maximum number of listeners that decode announcements.
const decoding = 16

// listenConfig configures the child process.
type listenConfig struct {
	Addrs []string // of the servers; the listeners take turns
	Topic string
	N     int // listeners
}

// received is what the listeners have received in a period.
type received struct {
	Bytes    int64     // by all listeners
	Cut      int64     // connections that have ended
	Messages []int64   // by each listener that decodes
	Receipts []receipt // by all listeners that decode
}

// A receipt is one key of a received announcement. The times are Unix microseconds.
type receipt struct {
	Hash      uint64
	Announced int64 // the number of the announcement, which is the time of Redis
	At        int64
}

// listener is one subscription.
type listener struct {
	conn    net.Conn
	decodes bool
	bytes   atomic.Int64
	cut     atomic.Bool

	mu       sync.Mutex // guards the fields below
	messages int64
	receipts []receipt
}

// stride selects keys: receipts are recorded if the hash of the key is a multiple of it.
var stride atomic.Uint64

// listenersChild subscribes, and writes a line. Then it reads lines with the next stride, and
// replies with what it has received since the last one.
func listenersChild() {
	var c listenConfig
	if err := json.Unmarshal([]byte(os.Getenv("FLEET_LISTENERS")), &c); err != nil {
		panic(err)
	}
	all := make([]*listener, c.N)
	stride.Store(1)
	step := (c.N + decoding - 1) / decoding
	for i := range all {
		all[i] = &listener{decodes: i%step == 0}
		confirmed, err := all[i].subscribe(c.Addrs[i%len(c.Addrs)], c.Topic)
		if err != nil {
			panic(err)
		}
		if all[i].decodes {
			go all[i].decode(confirmed)
		} else {
			go all[i].count(confirmed)
		}
	}
	fmt.Println("subscribed")
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		next, err := strconv.ParseUint(in.Text(), 10, 64)
		if err != nil {
			panic(err)
		}
		got := take(all)
		stride.Store(next)
		if err := out.Encode(got); err != nil {
			panic(err)
		}
	}
}

// subscribe returns a reader of the messages, after the subscription was confirmed.
func (l *listener) subscribe(addr, topic string) (*bufio.Reader, error) {
	var err error
	if l.conn, err = net.Dial("tcp", addr); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(l.conn, "*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n", len(topic), topic); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(l, 16<<10)
	for range 6 { // *3, $9, subscribe, $…, the topic, :1
		if _, err := r.ReadSlice('\n'); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Read reads from the connection, and counts the bytes.
func (l *listener) Read(b []byte) (int, error) {
	n, err := l.conn.Read(b)
	l.bytes.Add(int64(n))
	return n, err
}

// count reads and drops all messages.
func (l *listener) count(r *bufio.Reader) {
	defer l.cut.Store(true)
	io.Copy(io.Discard, r) //nolint:errcheck // ends with the connection
}

// decode decodes all messages, and records some of their keys.
func (l *listener) decode(r *bufio.Reader) {
	defer l.cut.Store(true)
	var payload []byte
	for {
		var err error
		if payload, err = readMessage(r, payload); err != nil {
			return
		}
		at := time.Now().UnixMicro()
		m, err := invalidation.Decode(payload)
		if err != nil {
			continue
		}
		l.mu.Lock()
		l.messages++
		for part := range m.Parts() { // a message may contain several announcements
			part.Each(func(hash uint64) {
				if hash%stride.Load() == 0 {
					l.receipts = append(l.receipts, receipt{hash, int64(part.Number), at})
				}
			})
		}
		l.mu.Unlock()
	}
}

// readMessage reads one published message, and returns its payload in the memory of buffer.
func readMessage(r *bufio.Reader, buffer []byte) ([]byte, error) {
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
		buffer = slices.Grow(buffer[:0], n+2)[:n+2]
		if _, err := io.ReadFull(r, buffer); err != nil {
			return nil, err
		}
	}
	return buffer[:len(buffer)-2], nil
}

// take waits for a tenth of a second without a message, and returns what all listeners have
// received since the last call.
func take(all []*listener) (got received) {
	sum := func() (n int64) {
		for _, l := range all {
			n += l.bytes.Load()
		}
		return n
	}
	for last := int64(-1); last != sum(); time.Sleep(100 * time.Millisecond) {
		last = sum()
	}
	for _, l := range all {
		got.Bytes += l.bytes.Swap(0)
		if l.cut.Load() {
			got.Cut++
		}
		l.mu.Lock()
		if l.decodes {
			got.Messages = append(got.Messages, l.messages)
			got.Receipts = append(got.Receipts, l.receipts...)
		}
		l.messages, l.receipts = 0, nil
		l.mu.Unlock()
	}
	return got
}

// listeners is the child process as the test sees it.
type listeners struct{ *testenv.Child }

// listen starts n listeners, and returns when Redis has confirmed all of their subscriptions.
func listen(t *testing.T, c listenConfig) listeners {
	t.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	l := listeners{testenv.SpawnChild(t, "listeners", "FLEET_LISTENERS="+string(config))}
	if line, err := l.ReadLine(testenv.Hang); err != nil || line != "subscribed" {
		t.Fatal(line, err)
	}
	return l
}

// take returns what the listeners have received since the last call, and sets their next stride.
func (l listeners) take(t *testing.T, next uint64) (got received) {
	t.Helper()
	if _, err := fmt.Fprintln(l.Stdin, next); err != nil {
		t.Fatal(err)
	}
	line, err := l.ReadLine(testenv.Hang)
	if err == nil {
		err = json.Unmarshal([]byte(line), &got)
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}
