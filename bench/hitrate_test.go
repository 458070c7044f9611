package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/maypok86/otter/v2"

	"github.com/cacheaside/cacheaside"
)

// hitTrace is a trace that the memory of each contestant replays.
type hitTrace struct {
	file     string
	accesses int // the first of the trace; 0: all
	text     int // length of a row's text in bytes
	percents []float64
	behind   float64 // maximum share of accesses by which otter may have more hits
}

// memoryOf is a bounded memory without Redis. get returns the row of a key, and loads it if the
// memory does not have it.
type memoryOf struct {
	get  func(key string) *Row
	stop func()
}

// TestHitRate compares the hit rates of memory at equal heap. Otter gets room for a share of the
// keys. The others get the bytes that otter's heap then takes. One goroutine replays the trace.
// Otter evicts, and ristretto adds, on another goroutine, so that the figures vary by a point or
// two. HITRATE=all replays the whole of all traces.
func TestHitRate(t *testing.T) {
	const web12, web07, orm = "../examples/quickstart/testdata/web12.trace.gz", "testdata/web07.trace.gz",
		"testdata/orm-busy.trace.gz"
	traces := []hitTrace{{web12, 30_000, 200, []float64{10}, 0.02}}
	if full || os.Getenv("HITRATE") == "all" {
		percents := []float64{1, 10, 30}
		traces = []hitTrace{{orm, 0, 200, percents, 0.02}, {orm, 0, 2048, percents, 0.02},
			{web12, 0, 200, percents[1:], 0.02}, {web07, 0, 200, percents[1:], 0.02}, {web12, 0, 200, percents[:1], 0.1}, {web07, 0, 200, percents[:1], 0.05}}
	}
	table := &Table{Section: 12, Title: "Hit rates of memory at equal heap",
		Text: "One goroutine replays the whole trace. Otter gets room for a share of the keys. The others get as " +
			"many bytes as otter's heap then takes. Heap is the growth of the heap without what an empty cache " +
			"takes, which is the column \"empty\". A row has a text of the given length.",
		Head: []string{"trace", "text", "room", "", "hits", "heap, KiB", "empty, KiB"}}
	for _, tr := range traces {
		tr.compare(t, table)
	}
	publish(t, table)
}

func (tr hitTrace) compare(t *testing.T, table *Table) {
	accesses, keys, err := readTrace(tr.file, tr.accesses)
	if err != nil {
		t.Fatal(err)
	}
	name := tr.file[strings.LastIndex(tr.file, "/")+1 : strings.Index(tr.file, ".trace")]
	for _, percent := range tr.percents {
		rows := int(float64(len(keys)) * percent / 100)
		row := func(name string, r played) {
			table.Row(name, tr.text, fmt.Sprintf("%v %%", percent), r.name, fmt.Sprintf("%.3f", r.hits), r.heap>>10,
				r.empty>>10)
		}
		of := func(name string, open func(load func(string) *Row) (memoryOf, error)) (r played) {
			r, err := tr.play(name, accesses, keys, open)
			if err != nil {
				t.Fatal(name, err)
			}
			return r
		}
		theirs := of("otter", openOtter(rows))
		bytes := max(int64(theirs.heap), 64<<10) // the minimum of cacheaside
		ours := of(own, openOwnMemory(bytes))
		raw := of("raw ristretto", openRistretto(bytes, rows, int64(rowBytes(keys[0])-textBytes+tr.text)))
		for _, r := range []played{theirs, ours, raw} {
			row(name, r)
		}
		bar(t, fmt.Sprintf("%s, room for %v %%: hits that otter has more", name, percent), theirs.hits-ours.hits,
			tr.behind)
	}
}

// played is the result of a replay.
type played struct {
	name        string
	hits        float64
	heap, empty int // bytes
}

func (tr hitTrace) play(
	name string, accesses []int32, keys []string, open func(load func(string) *Row) (memoryOf, error),
) (played, error) {
	text := strings.Repeat("x", tr.text)
	loads := 0
	before := heapInUse()
	m, err := open(func(key string) *Row {
		loads++
		row := rowOf(key)
		row.Text = strings.Clone(text)
		return row
	})
	if err != nil {
		return played{}, err
	}
	defer m.stop()
	empty := heapInUse()
	for _, key := range accesses {
		m.get(keys[key])
	}
	r := played{name, 1 - float64(loads)/float64(len(accesses)), heapInUse() - empty, empty - before}
	runtime.KeepAlive(accesses)
	runtime.KeepAlive(keys)
	return r, nil
}

func openOtter(rows int) func(func(string) *Row) (memoryOf, error) {
	return func(load func(string) *Row) (memoryOf, error) {
		c, err := otter.New(&otter.Options[string, *Row]{MaximumSize: rows,
			ExpiryCalculator: otter.ExpiryWriting[string, *Row](time.Hour)})
		if err != nil {
			return memoryOf{}, err
		}
		return memoryOf{func(key string) *Row {
			r, ok := c.GetIfPresent(key)
			if !ok {
				r = load(key)
				c.Set(key, r)
			}
			return r
		}, func() { c.StopAllGoroutines() }}, nil
	}
}

func openRistretto(bytes int64, rows int, cost int64) func(func(string) *Row) (memoryOf, error) {
	return func(load func(string) *Row) (memoryOf, error) {
		c, err := ristretto.NewCache(&ristretto.Config[string, *Row]{NumCounters: int64(rows) * 10, MaxCost: bytes,
			BufferItems: 64})
		if err != nil {
			return memoryOf{}, err
		}
		return memoryOf{func(key string) *Row {
			r, ok := c.Get(key)
			if !ok {
				r = load(key)
				c.SetWithTTL(key, r, cost, time.Hour)
			}
			return r
		}, c.Close}, nil
	}
}

func openOwnMemory(bytes int64) func(func(string) *Row) (memoryOf, error) {
	return func(load func(string) *Row) (memoryOf, error) {
		c, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: bytes})
		if err != nil {
			return memoryOf{}, err
		}
		l, err := cacheaside.NewLoader(c, "product", func(_ context.Context, key string) (*Row,
			error) {
			return load(key), nil
		}, &cacheaside.LoaderOptions{TTL: time.Hour})
		if err != nil {
			return memoryOf{}, err
		}
		return memoryOf{func(key string) *Row {
			r, err := l.Get(context.Background(), key)
			if err != nil {
				panic(err)
			}
			return r
		}, func() { c.Close() }}, nil
	}
}
