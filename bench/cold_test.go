package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const coldLoad = 50 * time.Millisecond

// coldRuns are the results of a peer's runs.
type coldRuns struct {
	loads, beyond, commands []float64 // beyond: the p99 of the callers beyond the load, in milliseconds
	errors                  int
}

// runCold repeatedly lets callers in several processes read a key that is not cached anywhere.
func runCold(t *testing.T, p Peer, processes, callers, runs int) (all coldRuns) {
	t.Helper()
	r := testenv.SharedRedis(t)
	admin := r.Client(t)
	c := spawnCrew(t, p, processes, Config{Redis: r.Addr, TTL: time.Minute, Patient: !full})
	c.rows(t, map[string]dbRow{"": {Value: "row", Takes: coldLoad}})
	for run := range runs {
		admin.ConfigResetStat(t.Context())
		got := callersOf(c.do(t, childOrder{Do: "get", Keys: []string{fmt.Sprint("cold", run)}, Callers: callers}))
		if p.Redis {
			all.commands = append(all.commands, commands(t, r))
		}
		all.beyond = append(all.beyond, quantile(waitsOf(got), 0.99)-float64(coldLoad)/1e6)
		all.loads = append(all.loads, float64(len(c.loads(t))))
		all.errors += failed(got)
	}
	return all
}

func (c coldRuns) row(table *Table, p Peer) {
	commands := any("has no Redis")
	if p.Redis {
		commands = whole(median(c.commands))
	}
	table.Row(entrant(p), whole(median(c.loads)), whole(quantile(c.loads, 1)), median(c.beyond), quantile(c.beyond, 1),
		commands, c.errors)
}

var coldHead = []string{"", "loads", "most", "p99 beyond the load, ms", "worst, ms", "Redis commands", "errors"}

// TestColdKey measures a cold key that many callers of one process read.
func TestColdKey(t *testing.T) {
	const callers = 1000
	table := &Table{Section: 3, Title: "A cold key, one process", Head: coldHead,
		Text: fmt.Sprintf("%d goroutines of one process read a row concurrently that is not in any cache. Its load "+
			"takes %v. Medians of %d runs. Redis commands are all that Redis executed during that time, including "+
			"those in scripts.", callers, coldLoad, size(20, 2))}
	for _, p := range slices.Concat(entrants(t), Floors()) {
		t.Run(p.Name, func(t *testing.T) {
			all := runCold(t, p, 1, callers, size(20, 2))
			all.row(table, p)
			if p.Name == own {
				exactlyOneLoad(t, all)
			}
		})
	}
	publish(t, table)
}

// TestColdKeyFleet measures a cold key that many callers of several processes read.
func TestColdKeyFleet(t *testing.T) {
	const processes, callers = 4, 250
	table := &Table{Section: 4, Title: "A cold key, four processes", Head: coldHead,
		Text: fmt.Sprintf("%d callers in each of %d processes read a row concurrently that is not in any cache. Its "+
			"load takes %v. Loads are those of all processes. Medians of %d runs. Redis commands are all that Redis "+
			"executed during that time, including those in scripts.", callers, processes, coldLoad, size(20, 2))}
	for _, p := range slices.Concat(entrants(t), Floors()) {
		t.Run(p.Name, func(t *testing.T) {
			all := runCold(t, p, processes, callers, size(20, 2))
			all.row(table, p)
			if p.Name == own {
				exactlyOneLoad(t, all)
				bar(t, "p99 of the callers beyond the load, ms", median(all.beyond), 6)
				bar(t, "Redis commands", median(all.commands), 50)
			}
		})
	}
	publish(t, table)
}

func exactlyOneLoad(t *testing.T, c coldRuns) {
	t.Helper()
	if quantile(c.loads, 0) != 1 || quantile(c.loads, 1) != 1 || c.errors != 0 {
		t.Errorf("loads in each run: %v; %d errors", c.loads, c.errors)
	}
}
