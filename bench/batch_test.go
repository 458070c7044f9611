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
	batchHits = batchKeys / 2 // the default number of keys in Redis
)

// batchPeer is a peer that reads batches one after another.
type batchPeer struct {
	Peer
	label       string // in tables
	hits        int    // keys of a batch that are in Redis
	many        bool   // it supports batch reads
	before      Cache  // cache of another process that stores the hits
	timed       Cache
	server      *testenv.Redis
	wire        *wire
	counted     Cache        // connected through the wire
	calls, rows atomic.Int64 // of the load functions
	took        result
	t           testing.TB
}

// lastBatch is the number of the last batch. No two batches share a key, even if peers share a
// server and its names.
var lastBatch atomic.Int64

// TestBatchHalfHit measures batches with half of their keys in Redis, without a memory tier.
func TestBatchHalfHit(t *testing.T) {
	var all []*batchPeer
	for _, p := range slices.Concat(entrants(t), Floors()) {
		if p.Redis {
			all = append(all, newCountedPeer(t, p))
		}
	}
	takeTurns(all, size(12, 2), size(40, 2))
	table := &Table{
		Section: 11, Title: "Batches of 100 keys, half of them in Redis",
		Text: "One goroutine reads, without a memory tier. A function that takes no time loads the other half. A " +
			"peer without a batch read reads key by key. A round trip is a burst: the commands that a client sends " +
			"on one connection before it receives the reply to the first of them. " +
			"Commands sent are those that clients send. Commands executed also include those that scripts call. " +
			"Commands that set up connections are left out. A proxy counts them for one batch, in a separate run " +
			"from the timed ones.",
		Head: []string{"", "us", "middle half", "of cacheaside", "round trips", "commands sent", "commands executed",
			"calls of the load function", "rows asked of it"},
	}
	ours := all[0]
	for _, b := range all {
		n := b.count(size(25, 5))
		name := b.Name
		if !b.many {
			name += ", 100 Gets: has no batch read"
		}
		us := micro(b.took.ns)
		table.Row(name, median(us), spread(us), median(ratios(b.took.ns, ours.took.ns)), n.trips, n.sent, n.executed,
			n.calls, n.rows)
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

// takeTurns lets each peer read the given number of batches in each run.
func takeTurns(all []*batchPeer, runs, batches int) {
	for run := range runs {
		for j := range all {
			b := all[(run+j)%len(all)]
			b.took.ns = append(b.took.ns, b.time(batches))
		}
	}
}

// newCountedPeer opens a peer without a memory tier whose commands can be counted.
func newCountedPeer(t *testing.T, p Peer) *batchPeer {
	server := testenv.StartRedis(t)
	config := Config{Redis: server.Addr, NoMemory: true}
	b := newBatchPeer(t, p, batchHits, config, config)
	b.server, b.wire = server, newWire(t, server.Addr)
	config.Redis = b.wire.addr
	b.counted = open(t, p, b.with(config))
	b.warm(b.counted)
	return b
}

// newBatchPeer opens two caches of a peer. fill configures the one that stores the hits in Redis,
// timed the one that is measured.
func newBatchPeer(t testing.TB, p Peer, hits int, fill, timed Config) *batchPeer {
	b := &batchPeer{Peer: p, label: p.Name, hits: hits, t: t}
	b.before, b.timed = open(t, p, b.with(fill)), open(t, p, b.with(timed))
	_, b.many = b.timed.(Batcher)
	b.warm(b.timed)
	return b
}

// with adds the load functions to a configuration.
func (b *batchPeer) with(c Config) Config {
	c.Patient, c.TTL = true, time.Hour
	c.Load = func(_ context.Context, key string) (*Row, error) {
		b.calls.Add(1)
		b.rows.Add(1)
		return rowOf(key), nil
	}
	c.LoadMany = func(_ context.Context, keys []string) (map[string]*Row, error) {
		b.calls.Add(1)
		b.rows.Add(int64(len(keys)))
		found := make(map[string]*Row, len(keys))
		for _, key := range keys {
			found[key] = rowOf(key)
		}
		return found, nil
	}
	return c
}

// warmReads is the number of single keys that a cache reads before the measurement.
var warmReads = size(50, 10)

// warm makes a cache open its connections, load its scripts and adapt to the machine: it reads
// single rows that are not cached, and batches.
func (b *batchPeer) warm(c Cache) {
	n := lastBatch.Add(1)
	for i := range warmReads {
		if _, err := c.Get(context.Background(), fmt.Sprintf("single:%06d:%05d", n, i)); err != nil {
			b.t.Fatal(b.Name, err)
		}
	}
	for _, keys := range b.prepare(size(4, 1)) {
		b.read(c, keys)
	}
}

// prepare creates batches of new keys and stores the hits of each in Redis.
func (b *batchPeer) prepare(batches int) (all [][]string) {
	for range batches {
		n := lastBatch.Add(1)
		keys := make([]string, batchKeys)
		var hits []string
		for i := range keys {
			keys[i] = fmt.Sprintf("product:%06d:%05d", n, i)
			if i*b.hits%batchKeys < b.hits {
				hits = append(hits, keys[i])
			}
		}
		if len(hits) > 0 {
			b.read(b.before, hits)
		}
		all = append(all, keys)
	}
	time.Sleep(10 * time.Millisecond) // some peers store in the background
	return all
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

// time returns the time of a batch in ns.
func (b *batchPeer) time(batches int) float64 {
	prepared := b.prepare(batches)
	began := time.Now()
	for _, keys := range prepared {
		b.read(b.timed, keys)
	}
	return float64(time.Since(began).Nanoseconds()) / float64(batches)
}

// batchCost is the cost of one batch: medians of several batches, because a client may send other
// commands to Redis at the same time.
type batchCost struct{ trips, sent, executed, calls, rows float64 }

func (b *batchPeer) count(batches int) batchCost {
	var trips, sent, calls, rows []float64
	prepared := b.prepare(batches)
	executed := b.executed()
	for _, keys := range prepared {
		t, s, c, r := b.wire.trips.Load(), b.wire.commands.Load(), b.calls.Load(), b.rows.Load()
		b.read(b.counted, keys)
		time.Sleep(5 * time.Millisecond) // some peers store in the background
		trips = append(trips, float64(b.wire.trips.Load()-t))
		sent = append(sent, float64(b.wire.commands.Load()-s))
		calls = append(calls, float64(b.calls.Load()-c))
		rows = append(rows, float64(b.rows.Load()-r))
	}
	all := float64(b.executed()-executed) / float64(batches)
	return batchCost{median(trips), median(sent), all, median(calls), median(rows)}
}

// executed returns the number of commands that the server has executed, except those of drivers.
func (b *batchPeer) executed() (n int) {
	for name, calls := range b.server.CommandCalls(b.t) {
		name, _, _ = strings.Cut(name, "|")
		if counted(name) {
			n += calls
		}
	}
	return n
}
