package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// link is the connection of one process to one server.
type link struct {
	process int // its index in the fleet
	node    string
	busy    *atomic.Bool // toxiproxy is changing it
	*toxiproxy.Proxy
}

// newLinks creates a link from each process to each server, so that a single process can be
// disconnected.
func newLinks(t *testing.T, processes int, nodes []string) []*link {
	t.Helper()
	var links []*link
	for p := range processes {
		for _, node := range nodes {
			l := &link{process: p, node: node}
			l.open(t)
			links = append(links, l)
		}
	}
	return links
}

// open starts a new proxy on its own port, which no other program can take while the proxy is
// stopped.
func (l *link) open(t *testing.T) {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
	opened := link{l.process, l.node, new(atomic.Bool),
		toxiproxy.NewProxy(server, fmt.Sprintf("%d-%s", l.process, l.node), listen, l.node)}
	if err := opened.Start(); err != nil {
		t.Errorf("start a proxy: %v", err)
	}
	t.Cleanup(func() { opened.atMost(opened.Stop) })
	*l = opened
}

var toxics atomic.Int64

// poison adds a toxic to a share of the connections, and returns a function that removes it.
//
// If the other end of a connection has closed while data for it is delayed, toxiproxy needs 5
// seconds for each chunk before it removes a toxic, and blocks new connections in that time. The
// test does not wait for that: it kills the process, and the next process gets its own proxy.
func (l *link) poison(kind, stream string, share float64, attributes map[string]int) (heal func()) {
	if l.busy.Load() {
		return func() {}
	}
	name := fmt.Sprint(kind, toxics.Add(1))
	text, err := json.Marshal(map[string]any{"name": name, "type": kind, "stream": stream, "toxicity": share,
		"attributes": attributes})
	if err != nil {
		panic(err)
	}
	if _, err := l.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
		panic(err)
	}
	toxics := l.Toxics // by then the link may use another proxy
	return func() {
		l.atMost(func() {
			if err := toxics.RemoveToxic(context.Background(), name); err != nil {
				panic(err)
			}
		})
	}
}

// atMost waits for f, at most a second.
func (l *link) atMost(f func()) {
	busy := l.busy
	busy.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
		busy.Store(false)
	}()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}

// proxiesOf maps the servers to the proxies of one process.
func proxiesOf(links []*link, process int) map[string]string {
	to := map[string]string{}
	for _, l := range links {
		if l.process == process {
			to[l.node] = l.Listen
		}
	}
	return to
}
