package bench

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	stormProcesses = 4
	stormReaders   = 16 // in each process
	stormRate      = 2000
	stormTTL       = 2 * time.Second // some peers count in seconds and subtract a random part
	stormLoad      = 20 * time.Millisecond
	stormHot       = 20
)

// stormApart is the minimum time between the end of a load of a key and the next load that a
// rounded or randomly shortened TTL explains. The chance of an early refresh this long before the
// expiry is below 1e-20 per read.
const stormApart = stormTTL * 2 / 5

// traceRead is a read of a trace.
type traceRead struct {
	Key int
	At  time.Duration // after the start
}

// traceKeys reads the keys of a trace: a gzip stream of big-endian 32-bit integers.
func traceKeys(t testing.TB, file string) []int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var keys []int
	for ; len(b) >= 4; b = b[4:] {
		keys = append(keys, int(int32(binary.BigEndian.Uint32(b))))
	}
	return keys
}

// replay reads the keys of the order at their times.
func (p *childProcess) replay(o childOrder) []callerResult {
	got := make([]callerResult, len(o.Trace))
	start := time.Unix(0, o.Start)
	var wg sync.WaitGroup
	for g := range stormReaders {
		wg.Go(func() {
			for i := g; i < len(got); i += stormReaders {
				time.Sleep(time.Until(start.Add(o.Trace[i].At)))
				began := time.Now()
				value, failure := p.get(context.Background(), stormKey(o.Trace[i].Key))
				got[i] = callerResult{
					Key: o.Trace[i].Key, Began: began.UnixNano(), Took: time.Since(began), Value: value, Err: failure,
				}
			}
		})
	}
	wg.Wait()
	return got
}

func stormKey(key int) string { return fmt.Sprint("product:", key) }

// stormSeen summarizes loads.
type stormSeen struct {
	loads, close int
	atOnce       int // maximum number of concurrent loads of one key
}

func seeStorm(loads []loadSpan) (s stormSeen) {
	byKey := map[string][]loadSpan{}
	for _, l := range loads {
		byKey[l.Key] = append(byKey[l.Key], l)
	}
	s.loads = len(loads)
	for _, of := range byKey {
		slices.SortFunc(of, func(a, b loadSpan) int { return cmp.Compare(a.Began, b.Began) })
		for i, l := range of {
			now := 1
			for _, before := range of[:i] {
				if before.End > l.Began || before.End == 0 {
					now++
				}
			}
			s.atOnce = max(s.atOnce, now)
			if i > 0 && l.Began-of[i-1].End < int64(stormApart) {
				s.close++
			}
		}
	}
	return s
}

// TestStorm replays the reads of a real shop in several processes, with values that expire after
// seconds.
func TestStorm(t *testing.T) {
	trace := traceKeys(t, "../examples/quickstart/testdata/web12.trace.gz")
	warm, length := size(time.Second, 50*time.Millisecond), size(6*time.Second, 100*time.Millisecond)
	trace = trace[:int(stormRate*(warm+length).Seconds())]
	counts := map[int]int{}
	for _, key := range trace {
		counts[key]++
	}
	hot := slices.SortedFunc(func(yield func(int) bool) {
		for key := range counts {
			if !yield(key) {
				return
			}
		}
	}, func(a, b int) int { return cmp.Or(counts[b]-counts[a], a-b) })[:stormHot]
	reads := make([][]traceRead, stormProcesses)
	for i, key := range trace {
		reads[i%stormProcesses] = append(reads[i%stormProcesses],
			traceRead{key, time.Duration(i) * time.Second / stormRate})
	}
	table := &Table{Section: 5, Title: "A storm of expiry",
		Text: fmt.Sprintf("%d processes replay the beginning of a trace of a real shop for %v, with %s reads per "+
			"second in total, after %v that are not counted. Every value has a TTL of %v, and a load takes %v. The "+
			"hottest keys are the %d that are read most, with %s of %s reads. "+
			"A load is too soon if it began less than %v after the end of the previous load of its key. Neither "+
			"rounding or random shortening of a TTL nor an early refresh explains it.",
			stormProcesses, length, thousands(fmt.Sprint(stormRate)), warm, stormTTL, stormLoad, stormHot,
			thousands(fmt.Sprint(hotReads(counts, hot))), thousands(fmt.Sprint(len(trace))), stormApart),
		Head: []string{"", "hottest: p50, ms", "p99, ms", "all: p50, ms", "p99, ms",
			"loads of one key at once, at most", "loads", "too soon", "errors"}}
	for _, p := range slices.Concat(entrants(t), Floors()) {
		t.Run(p.Name, func(t *testing.T) {
			var addr string
			if p.Redis {
				addr = testenv.SharedRedis(t).Addr
			}
			c := spawnCrew(t, p, stormProcesses, Config{Redis: addr, TTL: stormTTL, Patient: !full})
			c.rows(t, map[string]dbRow{"": {Value: "row", Takes: stormLoad}})
			start := time.Now().Add(size(300*time.Millisecond, 50*time.Millisecond))
			var waits []func() (childReply, error)
			for i, process := range c {
				waits = append(waits, process.order(childOrder{Do: "replay", Trace: reads[i], Start: start.UnixNano()}))
			}
			var all, hottest []callerResult
			for _, wait := range waits {
				a, err := wait()
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range a.Callers {
					if g.Began >= start.Add(warm).UnixNano() {
						all = append(all, g)
					}
				}
			}
			for _, g := range all {
				if slices.Contains(hot, g.Key) {
					hottest = append(hottest, g)
				}
			}
			time.Sleep(5 * stormLoad) // loads in the background end
			seen := seeStorm(c.loads(t))
			h, a := waitsOf(hottest), waitsOf(all)
			table.Row(entrant(p), quantile(h, 0.5), quantile(h, 0.99), quantile(a, 0.5), quantile(a, 0.99), seen.atOnce,
				thousands(fmt.Sprint(seen.loads)), seen.close, failed(all))
			if p.Name == own {
				if seen.atOnce != 1 || seen.close != 0 || failed(all) != 0 {
					t.Errorf("%+v, %d errors", seen, failed(all))
				}
				bar(t, "p99 of the hottest keys, ms", quantile(h, 0.99), 1)
			}
		})
	}
	publish(t, table)
}

func hotReads(counts map[int]int, hot []int) (n int) {
	for _, key := range hot {
		n += counts[key]
	}
	return n
}
