package torture

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

const (
	processes = 4

	// lostTTL is how long a value may outlive a delete that a failover has lost: its TTL, counted
	// from its storing. A load in flight may store it later, if the failover has restored its
	// lease.
	lostTTL = rowTTL + loadTimeout + 2*redisTimeout + leaseTTL
)

// grace is how late an operation may end. On an idle machine it limits the time. Next to other
// tests, only a hanging operation is late.
func grace() time.Duration {
	if long() {
		return 700 * time.Millisecond
	}
	return testenv.Hang
}

// long reports whether the run has a requested length, so that its figures count.
func long() bool { return os.Getenv("TORTURE_TIME") != "" || testenv.Accepting }

// TestTorture: processes that read, write and invalidate on real servers see no value that is stale
// for longer than promised, under all faults.
func TestTorture(t *testing.T) {
	d := length(t, "TORTURE_TIME", 4*time.Second)
	for _, topology := range topologies {
		if !wanted(topology) {
			continue
		}
		t.Run(topology, func(t *testing.T) {
			for _, seed := range seeds(t, 1) {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					torture(t, config{Topology: topology, Seed: seed, Groups: true, Listeners: listening(topology),
						MaxStaleness: 2 * time.Second}, d)
				})
			}
		})
	}
}

// A build without a guard is detected, usually by one of the first seeds. A busy machine executes
// fewer operations per run, so there are more seeds.
func TestTortureDetectsMissingGuards(t *testing.T) {
	// Every other process delays each command by this time, so that a gap between two commands is
	// likely to meet other operations.
	const lag = 20 * time.Millisecond
	const bound = 150 * time.Millisecond
	if os.Getenv("CACHEASIDE_MUTANT") == "" {
		torture(t, config{Topology: "single", Seed: 100, MaxStaleness: bound, Lag: lag}, 3*time.Second)
		return
	}
	began := time.Now()
	for seed := uint64(100); time.Since(began) < 100*time.Second && !t.Failed(); seed++ {
		torture(t, config{Topology: "single", Seed: seed, MaxStaleness: bound, Lag: lag}, 10*time.Second)
		t.Logf("%v after the beginning", time.Since(began).Round(time.Second))
	}
}

// torture is one run.
func torture(t *testing.T, c config, d time.Duration) {
	topology, seed := c.Topology, c.Seed
	t.Logf("seed %d, %s, %v", seed, topology, d)
	s := startServers(t, topology)
	maria := testenv.SharedMariaDB(t)
	table := newTable(t, maria.DB(t), hotKeys+warmKeys+coldKeys)
	c.Addrs, c.Master, c.DSN, c.Table, c.Prefix, c.RedisTimeout =
		s.clients, s.master, maria.DSN(t), table, table, redisTimeout
	c.Sockets = sockets(t)
	others := listen(t, s.nodes, table, c.Listeners)
	f := &fleet{t: t, links: newLinks(t, processes, s.all), config: c}
	began := history.Now()
	f.start(processes)

	i := &injector{fleet: f, servers: s, seed: seed}
	stop := make(chan struct{})
	var monitored sync.WaitGroup
	monitored.Go(func() { i.monitor(stop) })
	if c.Wide && topology == "cluster" {
		for _, addr := range c.Addrs {
			monitored.Go(func() { plain(t, c, addr, stop) })
		}
	}
	healthy := d / 7
	end := time.Now().Add(d)
	time.Sleep(healthy)
	sick := history.Now()
	i.run(end.Add(-d / 7))
	time.Sleep(time.Until(end))
	close(stop)
	monitored.Wait()
	lasted := time.Duration(history.Now() - began)
	reports, ops := f.finish()

	in := check.Input{Ops: ops, Began: began, Bound: c.MaxStaleness, Grace: grace(), Failovers: i.failovers,
		LostTTL: lostTTL, Suspended: f.suspended}
	if c.Groups {
		in.Groups = groupsOf
	}
	checking := time.Now()
	found := check.Run(in)
	summary{seed, topology, lasted, began, sick, time.Since(checking), &in, found, reports, i, others}.print(t)
}
