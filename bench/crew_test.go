package bench

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// childPeer is the test's handle of a process that runs a peer.
type childPeer struct {
	*testenv.Child
	began chan string   // keys whose loads have read their rows
	gone  chan struct{} // closed when the process has ended

	mu      sync.Mutex
	last    int
	waiting map[int]chan childReply
}

var errGone = errors.New("the process has ended")

// spawnPeer starts a process that opens a peer.
func spawnPeer(t testing.TB, p Peer, c Config) *childPeer {
	t.Helper()
	type settings Config
	b, err := json.Marshal(struct { // all except the functions, which the process has itself
		settings
		Load, LoadMany any `json:",omitempty"`
	}{settings: settings(c)})
	if err != nil {
		t.Fatal(err)
	}
	child := &childPeer{
		Child: testenv.SpawnChild(t, "peer", "BENCH_PEER="+p.Name, "BENCH_CONFIG="+string(b)),
		began: make(chan string, 1000), gone: make(chan struct{}), waiting: map[int]chan childReply{},
	}
	go child.listen()
	t.Cleanup(func() {
		child.Kill()
		<-child.gone
	})
	return child
}

func (p *childPeer) listen() {
	defer close(p.gone)
	for {
		line, err := p.ReadLine(time.Hour)
		if err != nil {
			return
		}
		var a childReply
		if json.Unmarshal([]byte(line), &a) != nil {
			continue // the peer writes to its standard output
		}
		if a.Began != "" {
			p.began <- a.Began
			continue
		}
		p.mu.Lock()
		if c := p.waiting[a.ID]; c != nil {
			c <- a
		}
		p.mu.Unlock()
	}
}

// order sends an order to the process. The returned function waits for the reply.
func (p *childPeer) order(o childOrder) (wait func() (childReply, error)) {
	c := make(chan childReply, 1)
	p.mu.Lock()
	p.last++
	o.ID = p.last
	p.waiting[o.ID] = c
	p.mu.Unlock()
	b, err := json.Marshal(o)
	if err == nil {
		_, err = p.Stdin.Write(append(b, '\n'))
	}
	limit := time.After(90 * time.Second)
	return func() (childReply, error) {
		if err != nil {
			return childReply{}, err
		}
		select {
		case a := <-c:
			return a, nil
		case <-p.gone:
			return childReply{}, errGone
		case <-limit:
			return childReply{}, errors.New("no reply")
		}
	}
}

// crew are the processes of a peer.
type crew []*childPeer

// spawnCrew starts the processes. Each reads a row that no workload uses, so that it is connected
// and its scripts are loaded.
func spawnCrew(t testing.TB, p Peer, n int, c Config) crew {
	t.Helper()
	var all crew
	for range n {
		all = append(all, spawnPeer(t, p, c))
	}
	all.rows(t, map[string]dbRow{"": {Value: "row"}})
	for range 3 {
		all.do(t, childOrder{Do: "get", Keys: []string{"connect"}, Callers: 20})
	}
	all.do(t, childOrder{Do: "loads"})
	return all
}

// do sends an order to all processes at once.
func (c crew) do(t testing.TB, o childOrder) []childReply {
	t.Helper()
	var waits []func() (childReply, error)
	for _, p := range c {
		waits = append(waits, p.order(o))
	}
	var all []childReply
	for _, wait := range waits {
		a, err := wait()
		if err == nil && a.Err != "" {
			err = errors.New(a.Err)
		}
		if err != nil {
			t.Fatalf("%s: %v", o.Do, err)
		}
		all = append(all, a)
	}
	return all
}

// rows changes the databases of all processes.
func (c crew) rows(t testing.TB, rows map[string]dbRow) {
	t.Helper()
	c.do(t, childOrder{Do: "rows", Rows: rows})
}

// loads returns the loads of all processes since the previous call.
func (c crew) loads(t testing.TB) []loadSpan {
	t.Helper()
	var all []loadSpan
	for _, a := range c.do(t, childOrder{Do: "loads"}) {
		all = append(all, a.Loads...)
	}
	return all
}

// callersOf returns the callers of all replies.
func callersOf(answers []childReply) []callerResult {
	var all []callerResult
	for _, a := range answers {
		all = append(all, a.Callers...)
	}
	return all
}

// waitsOf returns the waiting times of callers in milliseconds.
func waitsOf(callers []callerResult) []float64 {
	all := make([]float64, len(callers))
	for i, c := range callers {
		all[i] = float64(c.Took) / 1e6
	}
	return all
}

// failed counts the callers without a value.
func failed(callers []callerResult) int {
	succeeded := slices.DeleteFunc(slices.Clone(callers), func(c callerResult) bool { return c.Err != "" })
	return len(callers) - len(succeeded)
}

// commands returns the number of commands that Redis has executed since its statistics were reset,
// including those of scripts.
func commands(t testing.TB, r *testenv.Redis) float64 {
	t.Helper()
	n := 0
	for _, calls := range r.CommandCalls(t) {
		n += calls
	}
	return float64(n)
}

// entrant returns the name of a peer in tables.
func entrant(p Peer) string {
	if !p.Redis {
		return p.Name + " (memory of a process only)"
	}
	return p.Name
}

// withRedis returns the peers, then the floors, that use Redis.
func withRedis(all ...[]Peer) []Peer {
	return slices.DeleteFunc(slices.Concat(all...), func(p Peer) bool { return !p.Redis })
}

// whole formats a count for a table.
func whole(f float64) string {
	if f != math.Trunc(f) {
		return digits(f)
	}
	return thousands(strconv.Itoa(int(f)))
}
