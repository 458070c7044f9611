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

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// link is the way of one process to one server.
type link struct {
	process int // its place in the fleet
	node    string
	busy    *atomic.Bool // toxiproxy is at work on it
	*toxiproxy.Proxy
}

// newLinks makes a way for each of the processes to each of the servers, so that one process can be cut off alone.
func newLinks(t *testing.T, processes int, nodes []string) []*link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	var links []*link
	for p := range processes {
		for _, node := range nodes {
			name := fmt.Sprintf("%d-%s", p, node)
			// A port of its own, so that nobody else takes it while the proxy is stopped.
			listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
			l := &link{p, node, new(atomic.Bool), toxiproxy.NewProxy(server, name, listen, node)}
			if err := l.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.atMost(l.Stop) })
			links = append(links, l)
		}
	}
	return links
}

var toxics atomic.Int64

// poison adds a toxic to a share of the connections, and returns what removes it.
//
// Where a connection's other end is gone while data for it is held up, toxiproxy takes 5 seconds for each piece before a toxic is removed, and lets nothing
// through by new connections meanwhile. Nobody waits for that: the process is cut off for longer, and the proxy is left alone until it is done.
func (l *link) poison(kind, stream string, share float64, attributes map[string]int) (heal func()) {
	if l.busy.Load() {
		return func() {}
	}
	name := fmt.Sprint(kind, toxics.Add(1))
	text, err := json.Marshal(map[string]any{"name": name, "type": kind, "stream": stream, "toxicity": share, "attributes": attributes})
	if err != nil {
		panic(err)
	}
	if _, err := l.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
		panic(err)
	}
	return func() {
		l.atMost(func() {
			if err := l.Toxics.RemoveToxic(context.Background(), name); err != nil {
				panic(err)
			}
		})
	}
}

// atMost waits for f, but no longer than a second.
func (l *link) atMost(f func()) {
	l.busy.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
		l.busy.Store(false)
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
