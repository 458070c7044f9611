package bench

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// batchShares are the percentages of a batch's keys that are in Redis. With batches of 100 keys
// they are also numbers of keys.
var batchShares = []int{0, 50, 100}

// batchPlace contains the Redis servers of the caches: fill for the cache that stores the hits,
// timed for the measured one.
type batchPlace struct{ fill, timed Config }

// batchesOf measures batches of all shares. It takes part with all peers that support batch reads,
// with their memory tiers, and adds a column for each share to the table. It returns the ratios to
// the code by hand, by share.
func batchesOf(
	t *testing.T, table *Table, peers []Peer, shares []int, runs, batches int, place func() batchPlace,
) map[int][]float64 {
	t.Helper()
	table.Head = []string{""}
	rows := map[string][]any{}
	var names, left []string
	ours := map[int][]float64{}
	places := map[string]batchPlace{}
	peers = slices.DeleteFunc(peers, func(p Peer) bool {
		at := place()
		places[p.Name] = at
		_, many := open(t, p, at.fill).(Batcher)
		if !many {
			left = append(left, p.Name)
		}
		return !many
	})
	for _, share := range shares {
		table.Head = append(table.Head, fmt.Sprintf("%d %% cached: us", share), "middle half", "of "+byHand)
		var all []*batchPeer
		for _, p := range peers {
			at := places[p.Name]
			all = append(all, newBatchPeer(t, p, share, at.fill, at.timed))
			if p.Name == own {
				at.timed.NoMemory = true
				without := newBatchPeer(t, p, share, at.fill, at.timed)
				without.label += " without memory tier"
				all = append(all, without)
			}
		}
		takeTurns(all, runs, batches)
		hand := all[slices.IndexFunc(all, func(b *batchPeer) bool { return b.label == byHand })]
		for _, b := range all {
			if rows[b.label] == nil {
				names = append(names, b.label)
				rows[b.label] = []any{b.label}
			}
			us, ratio := micro(b.took.ns), ratios(b.took.ns, hand.took.ns)
			rows[b.label] = append(rows[b.label], median(us), spread(us), within(ratio))
			if b.label == own {
				ours[share] = ratio
			}
		}
	}
	for _, name := range names {
		table.Row(rows[name]...)
	}
	table.Text = "One goroutine reads batches of 100 keys, each key once, with the memory tier on: it is filled, and " +
		"never serves. A function that takes no time loads the rows that are not cached. A ratio is the median of " +
		"the ratios of all runs, and in brackets the middle half of them." + table.Text +
		leftOut("they have no batch read", left)
	publish(t, table)
	return ours
}

// TestBatchMemory measures batches that fill a memory tier, with no keys, half of the keys or all
// keys cached.
func TestBatchMemory(t *testing.T) {
	start := serverEach(t)
	ours := batchesOf(t, &Table{Section: 11, Title: "Batches of 100 keys that fill the memory tier"},
		withRedis(entrants(t), Floors()), batchShares, size(15, 2), size(30, 2), func() batchPlace {
			c := Config{Redis: start().Addr}
			return batchPlace{c, c}
		})
	bar(t, "half cached, time relative to "+byHand, median(ours[50]), 1.9)
	bar(t, "all cached, time relative to "+byHand, median(ours[100]), 1.15)
}

// TestBatchValkey measures the same batches on a server that can compare a value before it replaces
// it (SET with IFEQ).
func TestBatchValkey(t *testing.T) {
	server := testenv.SharedValkey(t)
	peers := slices.DeleteFunc(withRedis(entrants(t), Floors()), func(p Peer) bool { return p.Name != own && !p.Floor })
	ours := batchesOf(t, &Table{Section: 11, Title: "Batches of 100 keys in Valkey 9.1",
		Text: " The server has SET with IFEQ."}, peers, batchShares, size(15, 2), size(30, 2), func() batchPlace {
		c := Config{Redis: server.Addr}
		return batchPlace{c, c}
	})
	bar(t, "half cached, time relative to "+byHand, median(ours[50]), 1.7)
	bar(t, "all cached, time relative to "+byHand, median(ours[100]), 1.15)
}

// TestClusterBatch measures batches in a Redis Cluster of three masters.
func TestClusterBatch(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	peers, apart := onCluster(withRedis(entrants(t), Floors()))
	batchesOf(t, &Table{Section: 15, Title: "Batches of 100 keys in a Redis Cluster",
		Text: " MGET cannot cross slots, so " + byHand + " reads a pipeline of GET." + leftOut(notOnCluster,
			apart)}, peers, batchShares, size(15, 2), size(30, 2), func() batchPlace {
		c := Config{Cluster: cluster.Addrs}
		return batchPlace{c, c}
	})
}

// TestSlowWireBatch measures batches over a wire that takes half a millisecond in each direction.
func TestSlowWireBatch(t *testing.T) {
	start := serverEach(t)
	trip := newSlowWire(t, start().Addr, oneWay).trip(t)
	ours := batchesOf(t, &Table{Section: 16, Title: "Batches of 100 keys over a wire of 0.5 ms",
		Text: slowWireText(trip)}, withRedis(entrants(t), Floors()), batchShares, size(15, 2), size(20,
		2), func() batchPlace {
		server := start()
		return batchPlace{Config{Redis: server.Addr}, Config{Redis: newSlowWire(t, server.Addr, oneWay).addr}}
	})
	bar(t, "a PING over the wire, ms", trip, 1.5)
	for _, share := range batchShares {
		bar(t, fmt.Sprintf("%d %% cached, time relative to %s", share, byHand), median(ours[share]), 1.25)
	}
}

func slowWireText(trip float64) string {
	return fmt.Sprintf(" A proxy between each cache and Redis delivers all bytes 0.5 ms after they arrived, in both "+
		"directions, without limiting the throughput. A PING takes %s ms. Before, each cache has read %d single keys "+
		"that were not cached.", digits(trip), warmReads)
}

// TestSlowWireMiss measures single keys that are not cached, over the same wire.
func TestSlowWireMiss(t *testing.T) {
	start := serverEach(t)
	trip := newSlowWire(t, start().Addr, oneWay).trip(t)
	var next atomic.Int64 // the next key, shared by all peers
	var contenders []contender
	for _, p := range withRedis(entrants(t), Floors()) {
		c := open(t, p, Config{Redis: newSlowWire(t, start().Addr, oneWay).addr, Patient: true, TTL: time.Hour,
			Load: func(_ context.Context, key string) (*Row, error) { return rowOf(key), nil }})
		miss := func(int) error {
			_, err := c.Get(context.Background(), fmt.Sprintf("product:%012d", next.Add(1)))
			return err
		}
		for i := range warmReads {
			if err := miss(i); err != nil {
				t.Fatal(p.Name, err)
			}
		}
		contenders = append(contenders, contender{p.Name, miss})
	}
	results := contest(t, size(10, 2), 1, size(100*time.Millisecond, 5*time.Millisecond), contenders)
	table := &Table{Section: 16, Title: "Single misses over a wire of 0.5 ms",
		Text: "One goroutine reads keys that are not cached, with the memory tier on. Their loads take no time." +
			slowWireText(trip),
		Head: []string{"", "ms", "middle half", "of " + byHand}}
	hand, ours := find(results, byHand), find(results, own)
	for _, r := range results {
		ms := micro(micro(r.ns))
		table.Row(r.name, median(ms), spread(ms), within(ratios(r.ns, hand.ns)))
	}
	publish(t, table)
	bar(t, "time of a miss relative to "+byHand, median(ratios(ours.ns, hand.ns)), 1.25)
}
