package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// longestFault is the maximum duration of a fault of the network or of a process.
const longestFault = 3 * time.Second

// fault is a kind of fault. Its function makes the fault last about d, and returns its target.
type fault struct {
	name string
	do   func(i *injector, r *rand.Rand, d time.Duration) (target string)
}

// happened is an injected fault.
type happened struct {
	name, target string
	check.Window
}

// injector injects faults.
type injector struct {
	*fleet
	*servers
	seed uint64

	mu        sync.Mutex
	faults    []happened
	failovers []check.Window
}

// run injects faults until the end, in rounds with healthy pauses between them. Two lanes run
// concurrently in a round, so at most two faults overlap: one of the network or processes, and one
// of the servers.
func (i *injector) run(end time.Time) {
	lanes := [][]fault{networkFaults, serverFaults[i.topology]}
	var hands [2][]fault
	var random [2]*rand.Rand
	for lane := range lanes {
		random[lane] = rand.New(rand.NewPCG(i.seed, 1000+uint64(lane)))
	}
	for round := 0; time.Now().Before(end); round++ {
		roundEnd := time.Now().Add(6 * time.Second)
		var wg sync.WaitGroup
		for lane := range lanes {
			wg.Go(func() {
				r := random[lane]
				for time.Now().Before(end) && time.Now().Before(roundEnd) {
					if len(hands[lane]) == 0 { // each kind once before any repeats
						hands[lane] = slices.Clone(lanes[lane])
						r.Shuffle(len(hands[lane]),
							func(a, b int) { hands[lane][a], hands[lane][b] = hands[lane][b], hands[lane][a] })
						// The first fault is the worst, so that a short run contains it.
						if lane == 1 && round == 0 {
							slices.SortStableFunc(hands[lane], func(a, b fault) int { return rank(a) - rank(b) })
						}
					}
					f := hands[lane][0]
					hands[lane] = hands[lane][1:]
					x := r.Float64() // mostly short, so that many fit
					d := 200*time.Millisecond + time.Duration(x*x*x*float64(longestFault-200*time.Millisecond))
					from := history.Now()
					target := f.do(i, r, d)
					i.mu.Lock()
					i.faults = append(i.faults, happened{f.name, target, check.Window{From: from, To: history.Now()}})
					i.mu.Unlock()
					time.Sleep(100*time.Millisecond + pick(r, 700*time.Millisecond))
					if strings.HasPrefix(f.name, "failover") {
						time.Sleep(2 * time.Second) // without a fault, no violation is excused
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(min(time.Second, max(0, time.Until(end))))
	}
}

func rank(f fault) int {
	if f.name == "failover, behind" || f.name == "restarted empty" {
		return 0
	}
	return 1
}

// some chooses the links of a network fault: usually all links of one process, otherwise one of
// them, or all links of the fleet.
func (i *injector) some(r *rand.Rand) (links []*link, target string) {
	p := r.IntN(len(i.places))
	all := r.IntN(10) == 0
	for _, l := range i.links {
		if all || l.process == p {
			links = append(links, l)
		}
	}
	switch {
	case all:
		return links, "all"
	case len(links) > 1 && r.IntN(3) == 0:
		one := links[r.IntN(len(links))]
		return []*link{one}, fmt.Sprintf("process at %d and %s", p, one.node)
	default:
		return links, fmt.Sprintf("process at %d", p)
	}
}

// during returns the faults that overlap an interval, relative to began.
func (i *injector) during(from, to, began int64) (texts []string) {
	for _, f := range i.faults {
		if f.From <= to && f.To >= from {
			texts = append(texts, fmt.Sprintf("%s [%s] %.3f-%.3f s", f.name, f.target, seconds(f.From-began),
				seconds(f.To-began)))
		}
	}
	for _, w := range i.failovers {
		if w.From <= to && w.To >= from {
			texts = append(texts, fmt.Sprintf("deletes may be lost %.3f-%.3f s", seconds(w.From-began),
				seconds(w.To-began)))
		}
	}
	return texts
}

func seconds(nanos int64) float64 { return time.Duration(nanos).Seconds() }
