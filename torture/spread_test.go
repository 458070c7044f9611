package torture

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

const (
	spreadKeys  = 10_000
	spreadRate  = 200                   // writes a second
	spreadAhead = 50 * time.Millisecond // time between the announcement and the write
)

// spreadSize returns the number of processes and of keys. There are fewer if times are not
// measured.
func spreadSize() (processes, keys int) {
	if os.Getenv("SPREAD_TIME") == "" {
		return 4, spreadKeys / 10
	}
	return 8, spreadKeys
}

// order announces a write to all processes: the key, the writer and the time.
type order struct {
	Number, Key, Writer int
	Version             int64 // the version that the write creates
	At                  int64
}

// sight is what a process saw of a write by polling its key.
type sight struct {
	Number int
	// Start of its last Get that returned an older version; within the bound that may be after it
	// saw the new one.
	LastOld  int64
	FirstNew int64 // end of its first Get that returned the new version; 0: none did
	Acked    int64 // only in the writer: when its Invalidate returned nil
	Err      string
}

// spreadReport is the final report of a process.
type spreadReport struct {
	Sights []sight
	Sums   map[string]int64
}

// spreadBound is the default of MaxStaleness.
const spreadBound = 2 * time.Second

// TestSpread measures how soon all processes of a healthy fleet see a write. The processes poll
// each key from shortly before its write until they see the new version.
func TestSpread(t *testing.T) {
	for _, listeners := range []int{0, 100} { // with 100, announcements are gathered
		t.Run(fmt.Sprint(listeners, " other listeners"), func(t *testing.T) { testSpread(t, listeners) })
	}
}

func testSpread(t *testing.T, listeners int) {
	d := length(t, "SPREAD_TIME", 2*time.Second)
	processes, keys := spreadSize()
	s := startServers(t, "single")
	maria := testenv.SharedMariaDB(t)
	table := newTable(t, maria.DB(t), keys)
	listen(t, s.nodes, table, listeners)
	direct := map[string]string{}
	for _, addr := range s.all {
		direct[addr] = addr
	}
	dir := t.TempDir()
	var children []*testenv.Child
	for p := range processes {
		c := config{Process: p, Topology: s.topology, Addrs: s.clients, Proxies: direct, DSN: maria.DSN(t),
			Table: table, Prefix: table, MaxStaleness: spreadBound, RedisTimeout: testenv.Hang,
			QueueTimeout: testenv.Hang, File: filepath.Join(dir, fmt.Sprint("sights", p))}
		children = append(children, testenv.SpawnChild(t, "spread", c.environment()))
	}
	for p, c := range children {
		if line, err := c.ReadLine(testenv.Hang); err != nil || line != "ready" {
			t.Fatalf("process %d: %q, %v", p, line, err)
		}
	}
	writes := announce(t, children, d, keys)
	reports := make([]spreadReport, len(children))
	for p, c := range children {
		if line, err := c.ReadLine(2 * testenv.Hang); err != nil || line != "done" {
			t.Fatalf("process %d: %q, %v", p, line, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("sights", p)))
		if err == nil {
			err = json.Unmarshal(b, &reports[p])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	judge(t, writes, reports, keys)
}

// announce announces each write to all processes ahead of time.
func announce(t *testing.T, children []*testenv.Child, d time.Duration, n int) (orders []order) {
	r := rand.New(rand.NewPCG(1, 1))
	keys := r.Perm(n)
	first := history.Now() + int64(100*time.Millisecond)
	for n := range int(d.Seconds() * spreadRate) {
		o := order{Number: n, Key: keys[n%len(keys)], Writer: r.IntN(len(children)),
			Version: 2 + int64(n/len(keys)), At: first + int64(n)*int64(time.Second/spreadRate)}
		time.Sleep(time.Duration(o.At - history.Now() - int64(spreadAhead)))
		b, _ := json.Marshal(o)
		for _, c := range children {
			if _, err := c.Stdin.Write(append(b, '\n')); err != nil {
				t.Fatal(err)
			}
		}
		orders = append(orders, o)
	}
	time.Sleep(spreadAhead)
	for _, c := range children {
		c.Stdin.Close()
	}
	return orders
}

// judge prints how long it took until all processes saw the writes, and fails for reads that
// violate the bound.
func judge(t *testing.T, writes []order, reports []spreadReport, keys int) {
	bySight := make([][]sight, len(writes))
	sums := map[string]int64{}
	for _, r := range reports {
		for _, s := range r.Sights {
			bySight[s.Number] = append(bySight[s.Number], s)
		}
		for name, n := range r.Sums {
			sums[name] += n
		}
	}
	var took []time.Duration
	violations, unseen, early := 0, 0, 0
	for _, o := range writes {
		var acked, last int64
		for _, s := range bySight[o.Number] {
			acked = max(acked, s.Acked)
			last = max(last, s.FirstNew)
		}
		if len(bySight[o.Number]) != len(reports) || acked == 0 {
			unseen++
			continue
		}
		for p, s := range bySight[o.Number] {
			switch {
			case s.Err != "":
				t.Errorf("write %d, process %d: %s", o.Number, p, s.Err)
			case s.FirstNew == 0 || s.LastOld-acked > int64(spreadBound) || s.Acked != 0 && s.LastOld > acked:
				violations++
				t.Errorf("write %d of key %d, process %d: %+v, acknowledged at %d", o.Number, o.Key, p, s, acked)
			}
		}
		if last <= acked {
			early++ // the writer itself is often the last one
		}
		took = append(took, time.Duration(max(0, last-acked)))
	}
	if len(took) == 0 {
		t.Fatal("nothing was measured")
	}
	slices.Sort(took)
	at := func(p float64) time.Duration { return took[int(p*float64(len(took)-1))].Round(10 * time.Microsecond) }
	t.Logf("%d writes, %d a second, %d processes, %d keys: seen by the last process %v (p50), %v (p99), %v (max) "+
		"after Invalidate had returned; %d before; hit ratio %.4f; %d not measured, %d violations\n  %s",
		len(took), spreadRate, len(reports), keys, at(0.5), at(0.99), at(1), early,
		float64(sums["memory hits"])/float64(max(1, sums["gets"])), unseen, violations, counts(sums))
	if unseen > 0 {
		t.Errorf("%d writes were not seen by all processes", unseen)
	}
}

func init() { testenv.RegisterChild("spread", spreadChild) }
