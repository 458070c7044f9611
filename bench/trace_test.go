package bench

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// trace is a trace that all peers replay with each memory budget.
type trace struct {
	title, file string
	distinct    int // keys of the whole trace
	first       int // number of accesses from its start; 0: all
	load        time.Duration
	budgets     []int // in percent of the rows
	runs        int
	best        int // number of other peers: the fastest with Redis; 0: all
	bar         bool
}

// TestTraces replays accesses of a production web shop, starting with an empty Redis.
func TestTraces(t *testing.T) {
	const web12, web07, orm = "../examples/quickstart/testdata/web12.trace.gz", "testdata/web07.trace.gz",
		"testdata/orm-busy.trace.gz"
	traces := []trace{
		{title: "web12", file: web12, distinct: 13_756, budgets: []int{1, 10, 50}, runs: 1},
		{title: "web07", file: web07, distinct: 20_484, budgets: []int{10}, runs: 1},
		{title: "orm-busy", file: orm, first: 200_000, budgets: []int{1, 50}, runs: 1},
		{title: "orm-busy, loads of 1 ms", file: orm, first: 200_000, load: time.Millisecond, budgets: []int{10}, runs: 1},
		{title: "orm-busy", file: orm, first: 200_000, budgets: []int{10}, runs: 2},
		{title: "orm-busy", file: orm, distinct: 76_349, budgets: []int{10}, runs: 1, best: 2, bar: true},
	}
	if !full {
		traces = []trace{
			{title: "orm-busy", file: orm, first: 5_000, budgets: []int{50}, runs: 1},
		}
	}
	var fastest []string
	for i, tr := range traces {
		t.Run(fmt.Sprint(i, " ", tr.title), func(t *testing.T) { fastest = tr.compare(t, fastest) })
	}
}

// compare publishes the table of a trace, and returns the names of the other peers that use Redis,
// the fastest first.
func (tr trace) compare(t *testing.T, fastest []string) []string {
	table := &Table{Section: 12, Head: []string{"memory", "", "heap, MiB", "without Redis", "loads", "accesses/s",
		"of cacheaside"}}
	speeds := map[string][]float64{}
	var peers []Peer
	for _, p := range entrants(t) {
		if tr.best == 0 || p.Name == own || slices.Contains(fastest[:min(tr.best, len(fastest))], p.Name) {
			peers = append(peers, p)
		}
	}
	var last replayed
	for i, share := range tr.budgets {
		clear(speeds)
		results := map[string]replayed{}
		for run := range tr.runs {
			for j := range peers {
				p := peers[(run+j)%len(peers)]
				if !p.Memory && i+run > 0 { // it has no budget
					continue
				}
				r := replay{Peer: p.Name, Redis: testenv.SharedRedis(t).Addr, File: tr.file, Accesses: tr.first,
					Percent: share, Load: tr.load, Goroutines: 64}.start(t)
				results[p.Name] = r
				if r.Err == "" {
					speeds[p.Name] = append(speeds[p.Name], r.perSecond())
				}
			}
		}
		last = results[own]
		tr.check(t, last)
		budget := fmt.Sprintf("%s, %.1f MiB", percent(float64(last.Rows)/float64(last.Distinct)),
			float64(last.Bytes)/(1<<20))
		for _, p := range peers {
			name := p.Name
			if !p.Redis {
				name += ", without Redis: what it evicts is loaded again"
			}
			r, ran := results[p.Name]
			if !ran {
				continue
			}
			of := budget
			if !p.Memory {
				of = "none"
			}
			if r.Err != "" {
				table.Row(of, name, "", "failed", r.Err, "", "")
				continue
			}
			table.Row(of, name, float64(max(0, r.Heap))/(1<<20), r.rate(p), float64(r.Loads), median(speeds[p.Name]),
				median(ratios(speeds[p.Name], speeds[own])))
		}
	}
	table.Title = fmt.Sprintf("The trace %s: %s accesses, %s keys", tr.title, digits(float64(last.Accesses)),
		digits(float64(last.Distinct)))
	table.Text = fmt.Sprintf(
		"64 goroutines of one process replay the trace, starting with an empty Redis. A row has %d bytes of text, "+
			"and a load takes %v. Memory is the budget, as a share of the distinct rows. Peers that count bytes get "+
			"the bytes of that many rows: "+
			"keys, fields and strings. That does not include bookkeeping, which counts against the budget of "+
			"cacheaside. The budget is at least 64 KiB, the minimum of cacheaside. Heap is the growth of the heap at "+
			"the end, including connections. "+
			"\"Without Redis\" is the share of accesses that did not read from Redis: most are hits in memory, and "+
			"some have waited for the loads of others.", textBytes, tr.load)
	publish(t, table)

	var others []string
	for _, p := range peers {
		if p.Name != own && p.Redis && len(speeds[p.Name]) > 0 {
			others = append(others, p.Name)
		}
	}
	slices.SortFunc(others, func(a, b string) int { return -cmp.Compare(median(speeds[a]), median(speeds[b])) })
	if tr.bar {
		for _, name := range others {
			bar(t, "throughput of "+name+" relative to ours", median(ratios(speeds[name], speeds[own])), 1/1.5)
		}
	}
	return others
}

// check asserts the results of this library that do not depend on time.
func (tr trace) check(t *testing.T, r replayed) {
	t.Helper()
	if r.Err != "" {
		t.Error(r.Err)
	}
	if r.Loads != r.Distinct {
		t.Errorf("%d loads of %d keys", r.Loads, r.Distinct)
	}
	if tr.distinct != 0 && r.Distinct != tr.distinct {
		t.Errorf("the trace has %d distinct keys, want %d", r.Distinct, tr.distinct)
	}
}
