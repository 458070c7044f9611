package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var (
	raceTTL  = size(3*time.Second, time.Second)
	raceLoad = size(200*time.Millisecond, 60*time.Millisecond)
)

// race is a situation that an invalidation can meet: the row changes and the key is invalidated
// while a load that has read the old row is in flight.
type race struct {
	name string
	many bool // it involves another process or Redis
	run  func(t *testing.T, r *raceRun) (outcome func() string)
}

var races = []race{
	{"invalidated by the process that loads", false, func(t *testing.T, r *raceRun) func() string { return r.invalidated(t, "a", r.a, "old") }},
	{"by another process", true, func(t *testing.T, r *raceRun) func() string { return r.invalidated(t, "b", r.b, "old") }},
	{"a read that begins then, in the process that has invalidated", false, func(t *testing.T, r *raceRun) func() string { return r.joined(t, "c", r.a) }},
	{"in the process that loads, another has invalidated", true, func(t *testing.T, r *raceRun) func() string { return r.joined(t, "d", r.b) }},
	{"a fill delayed in the network", true, func(t *testing.T, r *raceRun) func() string { return r.delayed(t) }},
	{"a row inserted while it is found missing", false, func(t *testing.T, r *raceRun) func() string { return r.invalidated(t, "f", r.a, "") }},
}

// raceRun is a run of a peer. Process a loads through a proxy, b is another process, and c has no
// memory tier, so that it reads the contents of Redis.
type raceRun struct {
	proxy   *testenv.Proxy
	a, b, c *childPeer
	all     crew
}

// get begins a load in process a, and returns when that has read the row.
func (r *raceRun) get(t *testing.T, key, old string) (wait func() (childReply, error)) {
	t.Helper()
	r.all.rows(t, map[string]dbRow{key: {Value: old, Takes: raceLoad, Tell: true}})
	wait = r.a.order(childOrder{Do: "get", Keys: []string{key}})
	for limit := time.After(10 * time.Second); ; {
		select {
		case began := <-r.a.began:
			if began == key {
				return wait
			}
		case <-limit:
			t.Fatal("the load does not begin")
		}
	}
}

// write changes the row and lets a process invalidate it.
func (r *raceRun) write(t *testing.T, key string, by *childPeer) (at time.Time) {
	t.Helper()
	r.all.rows(t, map[string]dbRow{key: {Value: "new"}})
	return time.Unix(0, crew{by}.do(t, childOrder{Do: "invalidate", Keys: []string{key}})[0].At)
}

func (r *raceRun) invalidated(t *testing.T, key string, by *childPeer, old string) func() string {
	done := r.get(t, key, old)
	at := r.write(t, key, by)
	if _, err := done(); err != nil {
		t.Fatal(err)
	}
	return r.look(t, key, at)
}

// joined begins a read during the load, after the invalidation has returned. One of the readers is
// process a, where the load runs.
func (r *raceRun) joined(t *testing.T, key string, by *childPeer) func() string {
	done := r.get(t, key, "old")
	r.write(t, key, by)
	got := crew{r.a}.do(t, childOrder{Do: "get", Keys: []string{key}})[0].Callers[0]
	if _, err := done(); err != nil {
		t.Fatal(err)
	}
	answer := got.Err
	switch got.Value {
	case "new":
		answer = fresh
	case "old":
		answer = "the old value"
	}
	return func() string { return answer }
}

func (r *raceRun) delayed(t *testing.T) func() string {
	const key, old = "e", "old-and-delayed"
	held := make(chan struct{}, 100)
	r.proxy.OnRequest(func(chunk []byte) testenv.Action {
		if strings.Contains(string(chunk), old) {
			held <- struct{}{}
			return testenv.Delay(raceLoad)
		}
		return testenv.Pass
	})
	done := r.get(t, key, old)
	select {
	case <-held:
	case <-time.After(5 * time.Second):
		return func() string { return "no fill seen" }
	}
	at := r.write(t, key, r.b)
	if _, err := done(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(raceLoad + 50*time.Millisecond) // the fill has arrived
	return r.look(t, key, at)
}

const fresh = "fresh"

// look lets all three processes read until they have returned only the new row for a while.
func (r *raceRun) look(t *testing.T, key string, at time.Time) func() string {
	t.Helper()
	began := time.Now()
	const within = 3 * time.Second / 2
	var waits []func() (childReply, error)
	for _, p := range r.all {
		waits = append(waits, p.order(childOrder{Do: "watch", Keys: []string{key}, Value: "new",
			Still: 300 * time.Millisecond, Pause: time.Millisecond, Within: raceTTL + within}))
	}
	return func() string {
		var longest time.Duration
		var inRedis bool
		ended := true
		for i, wait := range waits {
			a, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			if a.Stale != 0 {
				longest = max(longest, time.Unix(0, a.Stale).Sub(at), time.Millisecond)
				inRedis = r.all[i] == r.c
			}
			ended = ended && a.Finished
		}
		if longest == 0 {
			return fresh
		}
		where := "memory"
		if inRedis {
			where = "Redis"
		}
		if !ended {
			return fmt.Sprintf("stale in %s, for more than %.1f s", where, (raceTTL + within + began.Sub(at)).Seconds())
		}
		return fmt.Sprintf("stale in %s, for %s s", where, digits(longest.Seconds()))
	}
}

func startRaces(t *testing.T, p Peer, grouped bool) *raceRun {
	t.Helper()
	if !p.Redis {
		a := spawnCrew(t, p, 1, Config{TTL: raceTTL})
		return &raceRun{a: a[0], all: a}
	}
	server := testenv.StartRedis(t)
	r := &raceRun{proxy: testenv.NewProxy(t, server.Addr)}
	config := Config{Redis: r.proxy.Addr, TTL: raceTTL, NullTTL: raceTTL, MemoryTTL: raceTTL, Grouped: grouped,
		Patient: !full}
	a := spawnCrew(t, p, 1, config)
	config.Redis = server.Addr
	b := spawnCrew(t, p, 1, config)
	config.NoMemory = true
	c := spawnCrew(t, p, 1, config)
	r.a, r.b, r.c = a[0], b[0], c[0]
	r.all = crew{r.a, r.b, r.c}
	time.Sleep(100 * time.Millisecond) // all processes are subscribed
	return r
}

// TestRaces shows what happens to an old value that is being loaded when its key is invalidated.
func TestRaces(t *testing.T) {
	table := &Table{Section: 6, Title: "Old values that come late",
		Text: fmt.Sprintf("A process loads a row, which takes %v. After it has read the row, the row is changed and "+
			"its key invalidated. No Invalidate fails. Then three processes read the row repeatedly until all get "+
			"the new one: that process, another one with all tiers of the peer, and one without the memory tier. "+
			"All TTLs are %v. Stale for: the time from the return of Invalidate to the start of the last read that "+
			"returned the old value. In Redis: the process without a memory tier also got the old value.", raceLoad,
			raceTTL),
		Head: []string{""}}
	runRaces(t, table, entrants(t), false)
}

// TestRacesOfGroups is the same with an invalidation of the row's group instead of its key.
func TestRacesOfGroups(t *testing.T) {
	table := &Table{Section: 6, Title: "Old values that come late, and groups",
		Text: "The same, but each row belongs to a group (a tag), and the group is invalidated instead of the key. " +
			"Only peers that have groups take part. cacheaside promises that a Get in another process sees the " +
			"invalidation within MaxStaleness; with the option Fresh, it does at once.",
		Head: []string{""}}
	runRaces(t, table, pick(func(p Peer) bool { return p.Groups }), true)
}

func runRaces(t *testing.T, table *Table, peers []Peer, grouped bool) {
	t.Helper()
	for _, race := range races {
		table.Head = append(table.Head, race.name)
	}
	rows := make([][]any, len(peers))
	t.Run("all", func(t *testing.T) {
		for i, p := range peers {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				rows[i] = append(rows[i], entrant(p))
				r := startRaces(t, p, grouped)
				var outcomes []func() string
				for _, race := range races {
					outcome := func() string { return "" }
					if p.Redis || !race.many {
						outcome = race.run(t, r)
					}
					outcomes = append(outcomes, outcome)
				}
				for j, outcome := range outcomes {
					cell := outcome()
					rows[i] = append(rows[i], cell)
					// A Get without Fresh may see the invalidation of a group later, in another
					// process.
					late := grouped && strings.HasPrefix(cell, "stale in Redis, for ") &&
						!strings.Contains(cell, "more than")
					if p.Name == own && cell != fresh && !late {
						t.Errorf("%s: %s", races[j].name, cell)
					}
				}
			})
		}
	})
	for _, row := range slices.DeleteFunc(rows, func(r []any) bool { return len(r) <= len(races) }) {
		table.Row(row...)
	}
	publish(t, table)
}
