package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

const (
	goneCallers = 1000
	goneKnown   = 100
	goneOthers  = 200
	goneLoad    = 20 * time.Millisecond
)

// outage is how Redis goes.
type outage struct {
	name     string
	strike   func(*testenv.Redis)
	deadline time.Duration // of each caller
}

// Redis is killed, or hangs.
func TestRedisGone(t *testing.T) {
	outages := []outage{
		{"killed", (*testenv.Redis).Kill, 300 * time.Millisecond},
		{"hung", (*testenv.Redis).Pause, 300 * time.Millisecond},
		{"hung, short deadlines", (*testenv.Redis).Pause, 100 * time.Millisecond},
	}
	for _, o := range outages[:size(len(outages), 2)] {
		t.Run(o.name, func(t *testing.T) {
			table := &Table{Section: 9, Title: "Redis is " + o.name,
				Text: fmt.Sprintf("A process has read %d rows, once and again; then Redis is gone. At once %s callers, each with a deadline of %v, ask for a row that is cached nowhere; its load takes %v. Then the known rows are read, 10 at a time; then %d others that are cached nowhere, 20 at a time. "+
					"Beyond: by how much the last was answered after its deadline. Whoever is not answered within %v (first) or %v is counted as without a value.",
					goneKnown, thousands(fmt.Sprint(goneCallers)), o.deadline, goneLoad, goneOthers, goneFirst, goneThen),
				Head: []string{"", "with a value, %", "loads", "longest wait, ms", "beyond the deadline, ms", "known rows: with a value, %", "longest wait, ms", "other rows: with a value, %", "longest wait, ms", "loads"}}
			peers := withRedis(Peers(), Floors())
			rows := make([][]any, len(peers))
			for i, p := range peers {
				if p.Name == own { // whose times are asserted, so by itself
					t.Run(p.Name, func(t *testing.T) { rows[i] = runOutage(t, p, o) })
				}
			}
			t.Run("others", func(t *testing.T) {
				for i, p := range peers {
					if p.Name != own {
						t.Run(p.Name, func(t *testing.T) {
							t.Parallel()
							rows[i] = runOutage(t, p, o)
						})
					}
				}
			})
			for _, row := range rows {
				if row != nil {
					table.Row(row...)
				}
			}
			publish(t, table)
		})
	}
}

var (
	goneFirst = size(10*time.Second, 600*time.Millisecond)
	goneThen  = size(5*time.Second, 400*time.Millisecond)
)

func runOutage(t *testing.T, p Peer, o outage) []any {
	r := testenv.StartRedis(t)
	c := spawnCrew(t, p, 1, Config{Redis: r.Addr, TTL: time.Minute})
	known, others := make([]string, goneKnown), make([]string, goneOthers)
	for i := range known {
		known[i] = fmt.Sprint("known", i)
	}
	for i := range others {
		others[i] = fmt.Sprint("other", i)
	}
	for range 2 {
		c.do(t, childOrder{Do: "get", Keys: known, Turns: 10})
	}
	c.rows(t, map[string]dbRow{"": {Value: "row", Takes: goneLoad}})
	c.loads(t)
	o.strike(r)
	first := childOrder{Do: "get", Keys: []string{"cold"}, Callers: goneCallers, Deadline: o.deadline, Within: goneFirst}
	callers := callersOf(c.do(t, first))
	loads := len(c.loads(t))
	then := callersOf(c.do(t, childOrder{Do: "get", Keys: known, Turns: 10, Deadline: o.deadline, Within: goneThen}))
	c.loads(t)
	last := callersOf(c.do(t, childOrder{Do: "get", Keys: others, Turns: 20, Deadline: o.deadline, Within: goneThen}))
	otherLoads := len(c.loads(t))
	longest, text := longestWait(callers, goneFirst)
	beyond := max(0, longest-float64(o.deadline.Milliseconds()))
	_, thenText := longestWait(then, goneThen)
	_, lastText := longestWait(last, goneThen)
	w := waitsOf(callers)
	t.Log(p.Name, "waits: p1, p50, p90, p99, p99.9, all", digits(quantile(w, 0.01)), digits(median(w)), digits(quantile(w, 0.9)), digits(quantile(w, 0.99)), digits(quantile(w, 0.999)), digits(quantile(w, 1)))
	t.Log(p.Name, errorsOf(callers), errorsOf(then), errorsOf(last))
	if p.Name == own {
		bar(t, o.name+": the last answer beyond the deadline, ms", beyond, 20)
		bar(t, o.name+": loads for the callers of one key", float64(loads), 1)
		if o.name == "killed" {
			bar(t, o.name+": callers without a value, %", 100-withValue(callers), 0)
		}
	}
	return []any{p.Name, withValue(callers), loads, text, beyond, withValue(then), thenText, withValue(last), lastText, otherLoads}
}

// withValue is the percentage of those who got one.
func withValue(callers []callerGot) float64 {
	return 100 * (1 - float64(failed(callers))/float64(len(callers)))
}

// longestWait is in milliseconds; who never came back has waited for so long at least.
func longestWait(callers []callerGot, within time.Duration) (float64, string) {
	longest := quantile(waitsOf(callers), 1)
	for _, c := range callers {
		if c.Err == gotNever {
			return float64(within.Milliseconds()), "more than " + digits(float64(within.Milliseconds()))
		}
	}
	return longest, digits(longest)
}

// errorsOf counts what callers got instead of a value.
func errorsOf(callers []callerGot) map[string]int {
	n := map[string]int{}
	for _, c := range callers {
		n[c.Err]++
	}
	return n
}
