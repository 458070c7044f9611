package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	batchKeys = 100
	batchHits = batchKeys / 2 // those of them that are in Redis
)

// batchPeer is a peer that reads batches, one after another.
type batchPeer struct {
	Peer
	many        bool // it has a batch read
	server      *testenv.Redis
	wire        *wire
	before      Cache // another process' cache, by which the hits have come
	timed       Cache
	counted     Cache        // by way of the wire
	calls, rows atomic.Int64 // of load functions
	took        result
	next        int // batch
	t           testing.TB
}

// Batches of which half the keys are in Redis, without a memory tier.
func TestBatchHalfHit(t *testing.T) {
	var all []*batchPeer
	for _, p := range slices.Concat(entrants(t), Floors()) {
		if p.Redis {
			all = append(all, newBatchPeer(t, p))
		}
	}
	runs, each := size(12, 2), size(40, 2)
	for run := range runs {
		for j := range all {
			b := all[(run+j)%len(all)]
			b.took.ns = append(b.took.ns, b.time(each))
		}
	}
	table := &Table{
		Section: 11, Title: "Batches of 100 keys, half of them in Redis",
		Text: "One goroutine reads, without a memory tier. A function that takes no time loads the other half. A peer without a batch read reads key by key. A round trip is a burst: the commands that a client sends on one connection before it receives the reply to the first of them. " +
			"Commands sent are those that clients send. Commands executed also include those that scripts call. Commands that set up connections are left out. A proxy counts them for one batch, in a separate run from the timed ones.",
		Head: []string{"", "us", "middle half", "of cacheaside", "round trips", "commands sent", "commands executed", "calls of the load function", "rows asked of it"},
	}
	ours := all[0]
	for _, b := range all {
		n := b.count(size(25, 5))
		name := b.Name
		if !b.many {
			name += ", 100 Gets: has no batch read"
		}
		us := micro(b.took.ns)
		table.Row(name, median(us), spread(us), median(ratios(b.took.ns, ours.took.ns)), n.trips, n.sent, n.executed, n.calls, n.rows)
		if b != ours {
			continue
		}
		if n.trips > 4 || n.calls != 1 || n.rows != batchKeys-batchHits {
			t.Errorf("a batch takes %g round trips, %g calls of the load function, %g rows", n.trips, n.calls, n.rows)
		}
	}
	publish(t, table)
	for _, b := range all[1:] {
		if b.many && !b.Floor {
			bar(t, "time of a batch relative to "+b.Name, median(ratios(ours.took.ns, b.took.ns)), 1)
		}
	}
}

func newBatchPeer(t *testing.T, p Peer) *batchPeer {
	b := &batchPeer{Peer: p, server: testenv.StartRedis(t), t: t}
	b.wire = newWire(t, b.server.Addr)
	config := Config{
		Redis: b.server.Addr, NoMemory: true, Patient: true, TTL: time.Hour,
		Load: func(_ context.Context, key string) (*Row, error) {
			b.calls.Add(1)
			b.rows.Add(1)
			return rowOf(key), nil
		},
		LoadMany: func(_ context.Context, keys []string) (map[string]*Row, error) {
			b.calls.Add(1)
			b.rows.Add(int64(len(keys)))
			found := make(map[string]*Row, len(keys))
			for _, key := range keys {
				found[key] = rowOf(key)
			}
			return found, nil
		},
	}
	b.before, b.timed = open(t, p, config), open(t, p, config)
	config.Redis = b.wire.addr
	b.counted = open(t, p, config)
	_, b.many = b.timed.(Batcher)
	for _, c := range []Cache{b.timed, b.counted} { // connections, scripts
		for _, keys := range b.prepare(2) {
			b.read(c, keys)
		}
	}
	return b
}

// prepare makes batches of new keys, and has half of each in Redis.
func (b *batchPeer) prepare(n int) (batches [][]string) {
	for range n {
		b.next++
		keys := make([]string, batchKeys)
		var hits []string
		for i := range keys {
			keys[i] = fmt.Sprintf("product:%06d:%05d", b.next, i)
			if i%2 == 0 {
				hits = append(hits, keys[i])
			}
		}
		b.read(b.before, hits)
		batches = append(batches, keys)
	}
	time.Sleep(10 * time.Millisecond) // for those that store in the background
	return batches
}

// read reads keys as a batch.
func (b *batchPeer) read(c Cache, keys []string) {
	ctx := context.Background()
	if many, ok := c.(Batcher); ok {
		if rows, err := many.GetMany(ctx, keys); err != nil || len(rows) != len(keys) || rows[keys[1]] == nil {
			b.t.Fatal(b.Name, len(rows), err)
		}
		return
	}
	for _, key := range keys {
		if _, err := c.Get(ctx, key); err != nil {
			b.t.Fatal(b.Name, err)
		}
	}
}

// time is how many ns a batch takes.
func (b *batchPeer) time(batches int) float64 {
	prepared := b.prepare(batches)
	began := time.Now()
	for _, keys := range prepared {
		b.read(b.timed, keys)
	}
	return float64(time.Since(began).Nanoseconds()) / float64(batches)
}

// batchCost is what one batch costs: medians of several, for a client may have something else to
// say to Redis meanwhile.
type batchCost struct{ trips, sent, executed, calls, rows float64 }

func (b *batchPeer) count(batches int) batchCost {
	var trips, sent, calls, rows []float64
	prepared := b.prepare(batches)
	executed := b.executed()
	for _, keys := range prepared {
		t, s, c, r := b.wire.trips.Load(), b.wire.commands.Load(), b.calls.Load(), b.rows.Load()
		b.read(b.counted, keys)
		time.Sleep(5 * time.Millisecond) // for those that store in the background
		trips = append(trips, float64(b.wire.trips.Load()-t))
		sent = append(sent, float64(b.wire.commands.Load()-s))
		calls = append(calls, float64(b.calls.Load()-c))
		rows = append(rows, float64(b.rows.Load()-r))
	}
	all := float64(b.executed()-executed) / float64(batches)
	return batchCost{median(trips), median(sent), all, median(calls), median(rows)}
}

// executed is how many commands the server has executed, without those of drivers.
func (b *batchPeer) executed() (n int) {
	for name, calls := range b.server.CommandCalls(b.t) {
		name, _, _ = strings.Cut(name, "|")
		if counted(name) {
			n += calls
		}
	}
	return n
}
