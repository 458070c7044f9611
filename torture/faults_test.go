package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// networkFaults are faults of the network and of processes.
var networkFaults = []fault{
	poisoned("delay", func(r *rand.Rand) []toxic {
		d := 5 + r.IntN(400)
		return []toxic{{"latency", "downstream", map[string]int{"latency": d, "jitter": d / 2}},
			{"latency", "upstream", map[string]int{"latency": d / 4}}}
	}),
	poisoned("stall", func(r *rand.Rand) []toxic { // delayed data arrives at the end
		return []toxic{{"latency", "downstream", map[string]int{"latency": 1500 + r.IntN(1500)}}}
	}),
	poisoned("blackhole", func(*rand.Rand) []toxic { return []toxic{dropAll("upstream"), dropAll("downstream")} }),
	poisoned("replies lost", func(*rand.Rand) []toxic { return []toxic{dropAll("downstream")} }),
	poisoned("requests lost", func(*rand.Rand) []toxic { return []toxic{dropAll("upstream")} }),
	poisoned("reset", func(r *rand.Rand) []toxic {
		return []toxic{{"reset_peer", "downstream", map[string]int{"timeout": r.IntN(50)}}}
	}),
	poisoned("slow replies", func(r *rand.Rand) []toxic {
		return []toxic{{"bandwidth", "downstream", map[string]int{"rate": 1 + r.IntN(8)}}} // KB/s
	}),
	{"refused", func(i *injector, r *rand.Rand, d time.Duration) string {
		links, target := i.some(r)
		links = slices.DeleteFunc(slices.Clone(links), func(l *link) bool { return l.busy.Load() })
		for _, l := range links {
			l.Stop()
		}
		time.Sleep(d)
		for _, l := range links {
			if err := l.Start(); err != nil {
				i.t.Errorf("start a proxy again: %v", err)
			}
		}
		return target
	}},
	{"suspended", func(i *injector, r *rand.Rand, d time.Duration) string {
		p := i.places[r.IntN(len(i.places))]
		i.suspend(p, d-100*time.Millisecond)
		return fmt.Sprintf("process %d at %d", p.process, p.number)
	}},
	{"killed", func(i *injector, r *rand.Rand, d time.Duration) string {
		p := i.places[r.IntN(len(i.places))]
		process := p.process
		i.replace(p, d/4)
		return fmt.Sprintf("process %d at %d", process, p.number)
	}},
}

// toxic is a toxiproxy fault in one direction of a connection.
type toxic struct {
	kind, stream string
	attributes   map[string]int
}

// dropAll drops all data, and breaks the connection at its end.
func dropAll(stream string) toxic { return toxic{"timeout", stream, map[string]int{"timeout": 0}} }

// poisoned returns a fault made of toxics. Half of the time it affects only a share of the
// connections: a process without messages from its subscription may still get replies to its
// commands.
func poisoned(name string, make func(*rand.Rand) []toxic) fault {
	return fault{name, func(i *injector, r *rand.Rand, d time.Duration) string {
		links, target := i.some(r)
		share := 1.0
		if r.IntN(2) == 0 {
			share = 0.2 + 0.6*r.Float64()
			target += fmt.Sprintf(", %.0f %% of the connections", 100*share)
		}
		var heals []func()
		for _, l := range links {
			for _, t := range make(r) {
				heals = append(heals, l.poison(t.kind, t.stream, share, t.attributes))
			}
		}
		time.Sleep(d)
		for _, heal := range heals {
			heal()
		}
		for _, p := range i.places {
			if slices.ContainsFunc(links, func(l *link) bool { return l.process == p.number && l.busy.Load() }) {
				i.replace(p, 0)
				target += fmt.Sprintf("; process %d with new proxies", p.process)
			}
		}
		return target
	}}
}

// serverFaults are the faults of the servers.
var serverFaults = map[string][]fault{
	"single": {flushed, evicted, ungrouped, dropped("normal"), dropped("pubsub"), emptied,
		{"hung", func(i *injector, _ *rand.Rand, d time.Duration) string {
			i.nodes[0].Pause()
			time.Sleep(d)
			i.nodes[0].Resume()
			return i.nodes[0].Addr
		}}},
	"sentinel": {failover("failover, killed", killed), failover("failover, behind", behind), failover("failover, hung", hung), flushed, evicted, ungrouped, dropped("normal"), dropped("pubsub")},
	"cluster":  {failover("failover, killed", killed), failover("failover, behind", behind), failover("failover, hung", hung), flushed, evicted, ungrouped, dropped("normal"), dropped("pubsub")},
}

var flushed = fault{"flushed", func(i *injector, _ *rand.Rand, _ time.Duration) string {
	for _, m := range i.masters() {
		admin(m.Addr, "flushall", "sync")
	}
	return "all masters"
}}

// evicted deletes half of all keys, as a full Redis would: rows, and the state of ranges and
// groups.
var evicted = fault{"evicted", func(i *injector, r *rand.Rand, _ time.Duration) string {
	return i.delete("*", func() bool { return r.IntN(2) == 0 })
}}

// ungrouped deletes the numbers of invalidated groups, mostly of some ranges.
var ungrouped = fault{"groups evicted", func(i *injector, r *rand.Rand, _ time.Duration) string {
	share := []int{1, 4}[r.IntN(2)]
	return i.delete("*::groups:*", func() bool { return r.IntN(share) == 0 })
}}

// delete deletes those keys from all masters that match a pattern and that chosen selects.
func (i *injector) delete(pattern string, chosen func() bool) string {
	n := 0
	for _, m := range i.masters() {
		reply, _ := admin(m.Addr, "keys", pattern)
		names, _ := reply.([]any)
		for _, name := range names {
			if chosen() {
				admin(m.Addr, "del", name)
				n++
			}
		}
	}
	return fmt.Sprintf("%d keys", n)
}

var emptied = fault{"restarted empty", func(i *injector, _ *rand.Rand, d time.Duration) string {
	i.nodes[0].Kill()
	time.Sleep(d / 3)
	i.nodes[0].Restart(i.t)
	setUp(i.nodes[0].Addr)
	return i.nodes[0].Addr
}}

// dropped closes all connections of a kind.
func dropped(kind string) fault {
	return fault{"client kill " + kind, func(i *injector, r *rand.Rand, _ time.Duration) string {
		node := i.nodes[r.IntN(len(i.nodes))]
		admin(node.Addr, "client", "kill", "type", kind, "skipme", "yes")
		return node.Addr
	}}
}

// failover stops a master, waits until another one replaces it, and restarts it as a replica.
// Replication is asynchronous. So writes that were acknowledged just before may be lost, and so may
// those that the old master acknowledges before it learns of the failover.
func failover(name string, stop func(i *injector, m *testenv.Redis, d time.Duration)) fault {
	return fault{name, func(i *injector, r *rand.Rand, d time.Duration) string {
		var candidates []*testenv.Redis
		for _, m := range i.masters() {
			if _, followed := role(m.Addr); followed {
				candidates = append(candidates, m)
			}
		}
		if len(candidates) == 0 {
			return "nobody: no master has a replica yet"
		}
		m := candidates[r.IntN(len(candidates))]
		w := check.Window{From: history.Now() - int64(time.Second)}
		stop(i, m, d)
		if !until(15*time.Second, func() bool { return i.replaced(m) }) {
			i.t.Logf("no server has replaced %s", m.Addr)
		}
		m.Resume() // it may be suspended or dead
		if _, err := admin(m.Addr, "ping"); err != nil {
			m.Restart(i.t)
			setUp(m.Addr)
		}
		healed := until(20*time.Second, func() bool {
			sh := i.shape()
			i.heal(sh, m.Addr)
			return sh.normal
		})
		if !healed {
			i.t.Logf("the servers do not agree again after the failover of %s", m.Addr)
		}
		w.To = history.Now()
		i.mu.Lock()
		i.failovers = append(i.failovers, w)
		i.mu.Unlock()
		return m.Addr
	}}
}

func killed(_ *injector, m *testenv.Redis, _ time.Duration) { m.Kill() }

func hung(_ *injector, m *testenv.Redis, _ time.Duration) { m.Pause() }

// behind makes the replica miss the last writes before the kill of the master: up to half a second
// of them.
func behind(i *injector, m *testenv.Redis, d time.Duration) {
	replica := i.replicaOf(m)
	if replica != nil {
		replica.Pause()
		admin(m.Addr, "client", "kill", "type", "replica") // its buffers contain earlier data
		time.Sleep(min(d, 500*time.Millisecond))
	}
	m.Kill()
	if replica != nil {
		replica.Resume()
	}
}
