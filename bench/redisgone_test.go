package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	goneCallers = 1000
	goneKnown   = 100
	goneOthers  = 200
	goneLoad    = 20 * time.Millisecond
)

// outage describes how Redis fails.
type outage struct {
	name     string
	strike   func(*testenv.Redis)
	deadline time.Duration // of each caller
}

// TestRedisGone kills Redis or makes it hang.
func TestRedisGone(t *testing.T) {
	outages := []outage{
		{"killed", (*testenv.Redis).Kill, 300 * time.Millisecond},
		{"hung", (*testenv.Redis).Pause, 300 * time.Millisecond},
		{"killed, long deadlines", (*testenv.Redis).Kill, time.Second},
		{"hung, long deadlines", (*testenv.Redis).Pause, time.Second},
		{"hung, short deadlines", (*testenv.Redis).Pause, 100 * time.Millisecond},
	}
	for _, o := range outages[:size(len(outages), 2)] {
		t.Run(o.name, func(t *testing.T) {
			table := &Table{Section: 9, Title: "Redis is " + o.name,
				Text: fmt.Sprintf("A process has read %d rows twice. Then Redis becomes unreachable. Immediately, %s "+
					"callers, each with a deadline of %v, read a row that is not in any cache. Its load takes %v. "+
					"Then callers read the known rows, 10 at a time, and %d other rows that are not in any cache, 20 "+
					"at a time. "+
					"Beyond the deadline: how long after its deadline the last call returned. A call that has not "+
					"returned within %v (first) or %v counts as one without a value.",
					goneKnown, thousands(fmt.Sprint(goneCallers)), o.deadline, goneLoad, goneOthers, goneFirst,
					goneThen),
				Head: []string{"", "with a value, %", "loads", "longest wait, ms", "beyond the deadline, ms",
					"known rows: with a value, %", "longest wait, ms", "loads", "other rows: with a value, %",
					"longest wait, ms"}}
			var runs []*outageRun
			for _, p := range withRedis(entrants(t), Floors()) {
				runs = append(runs, prepareOutage(t, p))
			}
			for _, run := range runs {
				run.strike(t, o)
				// The peers' callers run one after another; the rest only waits, so it runs
				// concurrently.
				if full {
					run.then(t, o)
				}
			}
			for _, run := range runs {
				if !full {
					run.then(t, o)
				}
			}
			for _, run := range runs {
				table.Row(run.row(t, o)...)
			}
			publish(t, table)
		})
	}
}

var (
	goneFirst = size(3*time.Second, 600*time.Millisecond)
	goneThen  = size(3*time.Second, 400*time.Millisecond)
)

// outageRun is a run of a peer.
type outageRun struct {
	peer          Peer
	redis         *testenv.Redis
	process       crew
	known, others []string

	waitCallers           func() (childReply, error)
	callers               []callerResult
	loads                 stormSeen
	waitKnown, waitOthers func() (childReply, error)
}

// prepareOutage lets a process read the known rows.
func prepareOutage(t *testing.T, p Peer) *outageRun {
	t.Helper()
	r := &outageRun{peer: p, redis: testenv.StartRedis(t)}
	r.process = spawnCrew(t, p, 1, Config{Redis: r.redis.Addr, TTL: time.Minute})
	for i := range goneKnown {
		r.known = append(r.known, fmt.Sprint("known", i))
	}
	for i := range goneOthers {
		r.others = append(r.others, fmt.Sprint("other", i))
	}
	for range 2 {
		r.process.do(t, childOrder{Do: "get", Keys: r.known, Turns: 10})
	}
	r.process.rows(t, map[string]dbRow{"": {Value: "row", Takes: goneLoad}})
	r.process.loads(t)
	return r
}

func (r *outageRun) strike(t *testing.T, o outage) {
	t.Helper()
	o.strike(r.redis)
	r.waitCallers = r.process[0].order(childOrder{Do: "get", Keys: []string{"cold"}, Callers: goneCallers,
		Deadline: o.deadline, Within: goneFirst})
}

// then waits for the callers and reads other rows.
func (r *outageRun) then(t *testing.T, o outage) {
	t.Helper()
	a, err := r.waitCallers()
	if err != nil {
		t.Fatal(err)
	}
	r.callers = a.Callers
	r.loads = seeStorm(r.process.loads(t))
	r.waitKnown = r.process[0].order(childOrder{Do: "get", Keys: r.known, Turns: 10, Deadline: o.deadline,
		Within: goneThen})
	r.waitOthers = r.process[0].order(childOrder{Do: "get", Keys: r.others, Turns: 20, Deadline: o.deadline,
		Within: goneThen})
}

func (r *outageRun) row(t *testing.T, o outage) []any {
	t.Helper()
	known, err := r.waitKnown()
	if err != nil {
		t.Fatal(err)
	}
	others, err := r.waitOthers()
	if err != nil {
		t.Fatal(err)
	}
	reloads := 0
	for _, l := range r.process.loads(t) {
		if slices.Contains(r.known, l.Key) {
			reloads++
		}
	}
	longest, text := longestWait(r.callers, goneFirst)
	_, knownText := longestWait(known.Callers, goneThen)
	_, othersText := longestWait(others.Callers, goneThen)
	beyond := max(0, longest-float64(o.deadline.Milliseconds()))
	w := waitsOf(r.callers)
	t.Logf("%s: waits: p1 %s, p50 %s, p99 %s; %v, %v, %v", r.peer.Name, digits(quantile(w, 0.01)), digits(median(w)),
		digits(quantile(w, 0.99)), errorsOf(r.callers), errorsOf(known.Callers), errorsOf(others.Callers))
	if r.peer.Name == own {
		bar(t, o.name+": the last reply after its deadline, ms", beyond, 20)
		if r.loads.atOnce > 1 {
			t.Errorf("%s: %d concurrent loads of a key", o.name, r.loads.atOnce)
		}
		if o.deadline >= 300*time.Millisecond {
			bar(t, o.name+": callers without a value, %", 100-withValue(r.callers), 0)
		}
	}
	return []any{r.peer.Name, withValue(r.callers), r.loads.loads, text, beyond, withValue(known.Callers), knownText,
		reloads, withValue(others.Callers), othersText}
}

// withValue returns the percentage of callers with a value.
func withValue(callers []callerResult) float64 {
	return 100 * (1 - float64(failed(callers))/float64(len(callers)))
}

// longestWait returns the longest wait in milliseconds. A caller that has not returned counts as
// waiting for the whole time.
func longestWait(callers []callerResult, within time.Duration) (float64, string) {
	longest := quantile(waitsOf(callers), 1)
	for _, c := range callers {
		if c.Err == gotNever {
			return float64(within.Milliseconds()), "more than " + digits(float64(within.Milliseconds()))
		}
	}
	return longest, digits(longest)
}

// errorsOf counts the results of callers without a value.
func errorsOf(callers []callerResult) map[string]int {
	n := map[string]int{}
	for _, c := range callers {
		n[c.Err]++
	}
	return n
}
