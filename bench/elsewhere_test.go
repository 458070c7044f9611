package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestStaleElsewhere measures how long another process serves the old row from its memory.
func TestStaleElsewhere(t *testing.T) {
	trials := size(50, 5)
	memoryTTL := size(2*time.Second, time.Second)
	const attentive = 30 * time.Millisecond // the time that a trial has the machine to itself
	table := &Table{Section: 7, Title: "Staleness in the memory of another process",
		Text: fmt.Sprintf("Two processes have a row in memory with a TTL of %v. The row is changed, and one of them "+
			"invalidates it. The times are from the return of Invalidate to the start of the other process's last "+
			"read that returned the old row. %d trials; the other process reads about ten times per millisecond. The "+
			"last column has the Redis commands per read of that process before the change, when the row is in its "+
			"memory.", memoryTTL, trials),
		Head: []string{"", "p50, ms", "p99, ms", "longest, ms", "never stale", "Redis commands a read before"}}
	var reports []func() // the test waits for a stale peer only after the next peer has begun
	for _, p := range withRedis(entrants(t)) {
		if !p.Memory {
			reports = append(reports, func() { table.Row(p.Name, "has no memory tier", "", "", "", "") })
			continue
		}
		r := testenv.StartRedis(t)
		c := spawnCrew(t, p, 2, Config{Redis: r.Addr, TTL: time.Hour, MemoryTTL: memoryTTL, Patient: !full})
		time.Sleep(100 * time.Millisecond) // all processes are subscribed
		inMemory := commandsInMemory(t, r, c[1:])
		var waits []func() (childReply, error)
		var at []int64
		for i := range trials {
			key := fmt.Sprint("elsewhere", i)
			c.rows(t, map[string]dbRow{key: {Value: "old"}})
			for range 3 {
				c.do(t, childOrder{Do: "get", Keys: []string{key}})
				time.Sleep(2 * time.Millisecond) // some peers store it a little later
			}
			c.rows(t, map[string]dbRow{key: {Value: "new"}})
			waits = append(waits, c[1].order(childOrder{Do: "watch", Keys: []string{key}, Value: "new",
				Still: attentive / 2, Pause: 100 * time.Microsecond, Within: 2 * memoryTTL}))
			time.Sleep(3 * time.Millisecond)
			at = append(at, c[:1].do(t, childOrder{Do: "invalidate", Keys: []string{key}})[0].At)
			time.Sleep(attentive)
		}
		reports = append(reports, func() {
			var stale []float64
			never, beyond := 0, 0
			for i, wait := range waits {
				a, err := wait()
				if err != nil {
					t.Fatal(err)
				}
				if !a.Finished {
					beyond++
				}
				after := float64(max(0, a.Stale-at[i])) / 1e6
				stale = append(stale, after)
				if after == 0 {
					never++
				}
			}
			longest := digits(quantile(stale, 1))
			if beyond > 0 {
				longest = fmt.Sprintf("more than %s (%d of %d)", longest, beyond, trials)
			}
			table.Row(p.Name, median(stale), quantile(stale, 0.99), longest, fmt.Sprintf("%d of %d", never, trials),
				inMemory)
			if p.Name == own {
				bar(t, "staleness in another process: p99, ms", quantile(stale, 0.99), 20)
				if longest := quantile(stale, 1); longest > 2000 {
					t.Errorf("the old row is served for %v ms, more than MaxStaleness", longest)
				}
			}
		})
	}
	for _, report := range reports {
		report()
	}
	publish(t, table)
}

// commandsInMemory returns the commands that Redis executes for a read of a row that the process
// has just read.
func commandsInMemory(t *testing.T, r *testenv.Redis, c crew) float64 {
	t.Helper()
	const reads = 200
	for range 3 {
		c.do(t, childOrder{Do: "get", Keys: []string{"in memory"}})
		time.Sleep(5 * time.Millisecond)
	}
	r.Client(t).ConfigResetStat(t.Context())
	c.do(t, childOrder{Do: "get", Keys: []string{"in memory"}, Callers: reads, Turns: 1})
	return commands(t, r) / reads
}
