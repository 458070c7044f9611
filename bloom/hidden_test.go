package bloom

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var (
	hiddenSeed   = flag.Uint64("hidden.seed", 1, "of TestNothingIsHidden")
	hiddenChecks = flag.Int64("hidden.checks", 10_000_000, "of TestNothingIsHidden, with CACHEASIDE_ACCEPT")
)

// TestNothingIsHidden: processes add, read, and rebuild, while servers and processes are stopped,
// killed and emptied. No key is ever missed that was promised to be found.
func TestNothingIsHidden(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		r := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
		nothingIsHidden(t, worldConfig{Addrs: []string{r.Addr}}, []*testenv.Redis{r})
	})
	if !accept {
		return
	}
	t.Run("cluster", func(t *testing.T) {
		c := testenv.SharedCluster(t)
		for _, replica := range c.Nodes[3:] {
			// a replica may lack what its master has acknowledged: that is lost, and no filter can
			// help it
			failover(t, replica, "yes")
			defer failover(t, replica, "no")
		}
		nothingIsHidden(t, worldConfig{Addrs: c.Addrs, Cluster: true}, c.Nodes[:3])
	})
}

var accept = os.Getenv("CACHEASIDE_ACCEPT") != ""

func failover(t *testing.T, replica *testenv.Redis, never string) {
	must(t, replica.Client(t).ConfigSet(context.WithoutCancel(t.Context()), "cluster-replica-no-failover", never).Err())
}

// play is one run of the test.
type play struct {
	*world
	t        *testing.T
	rdb      redis.UniversalClient
	servers  []*testenv.Redis
	children []*testenv.Child
	faults   map[string]int

	mu      sync.Mutex
	history []string // of the descriptor, and faults
	verdict []string
	reading sync.WaitGroup
	started int
}

func nothingIsHidden(t *testing.T, c worldConfig, servers []*testenv.Redis) {
	c.File = filepath.Join(t.TempDir(), "world")
	c.Seed, c.Rows, c.Staleness, c.Slow, c.Until = *hiddenSeed, 1<<20, 300*time.Millisecond, 20*time.Millisecond, 0
	length := 3 * time.Second
	if os.Getenv("CACHEASIDE_MUTANT") != "" { // it finds by chance
		length = 10 * time.Second
	}
	if accept {
		c.Rows, c.Until, length = 100_000, *hiddenChecks, 0
	}
	w, err := openWorld(c)
	must(t, err)
	p := &play{world: w, t: t, rdb: c.client(), servers: servers, faults: make(map[string]int)}
	defer p.rdb.Close()
	var roles = []string{"writer", "writer", "reader", "reader", "rebuilder", "rebuilder"}
	for _, role := range roles {
		p.children = append(p.children, p.spawn(role))
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { p.watch(done) })
	began := time.Now()
	p.disturb(rand.New(rand.NewPCG(c.Seed, 0)), func() bool {
		return w.ended() || time.Since(began) > length && p.enough() ||
			time.Since(began) > 10*length+time.Minute+time.Duration(c.Until)*time.Second/5000
	})
	w.count(stop, 1)
	for _, child := range p.children {
		child.Resume()
	}
	for _, child := range p.children {
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}
	close(done)
	watching.Wait()
	p.reading.Wait()
	p.report(time.Since(began))
}

// enough reports whether enough has happened for a verdict.
func (p *play) enough() bool {
	return p.get(checks) >= max(20_000, p.config.Until) && 10*p.get(absent) >= p.get(asked) && p.get(rebuilt) >= 3 &&
		p.get(copyChecks) >= 1000 && p.get(oldChecks) >= 1000
}

func (p *play) spawn(role string) *testenv.Child {
	c := p.config
	p.started++
	c.Who = p.started
	b, err := json.Marshal(c)
	must(p.t, err)
	child := testenv.SpawnChild(p.t, "hidden-"+role, "WORLD="+string(b))
	p.reading.Go(func() {
		for {
			line, err := child.ReadLine(time.Hour)
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "HIDDEN") {
				p.mu.Lock()
				p.verdict = append(p.verdict, line)
				p.mu.Unlock()
			}
		}
	})
	return child
}

// watch notes what becomes of the descriptor.
func (p *play) watch(done chan struct{}) {
	last := "-"
	for {
		select {
		case <-done:
			return
		case <-time.After(3 * time.Millisecond):
		}
		raw, err := p.rdb.Get(p.t.Context(), "cacheaside::bloom:{users}").Result()
		if err != nil && err != redis.Nil {
			continue
		}
		if raw != last {
			last = raw
			p.note("descriptor: " + brief(raw))
		}
	}
}

func (p *play) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history = append(p.history, fmt.Sprintf("%.4f %s", float64(clock())/1e9, text))
	if len(p.history) > 5000 {
		p.history = p.history[2500:]
	}
}

func (p *play) report(took time.Duration) {
	t, w := p.t, p.world
	for _, v := range p.verdict {
		t.Errorf("seed %d: %s", w.config.Seed, v)
	}
	if len(p.verdict) > 0 {
		t.Logf("the latest history:\n%s", strings.Join(p.history[max(0, len(p.history)-60):], "\n"))
	}
	var faults []string
	for what, n := range p.faults {
		faults = append(faults, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(faults)
	share := float64(w.get(absent)) / float64(max(1, w.get(asked)))
	t.Logf("seed %d, %v: %d checks of a filter that could say no (own %d, old descriptor %d, replica %d, by its copy "+
		"%d, fresh %d), %d in all; of keys that nobody has added %d of %d were certainly absent (%.0f %%); lookups "+
		"failed: %d",
		w.config.Seed, took.Round(time.Millisecond), w.get(checks), w.get(ownChecks), w.get(oldChecks),
		w.get(heldChecks), w.get(copyChecks), w.get(freshChecks), w.get(allChecks), w.get(absent), w.get(asked),
		100*share, w.get(failedLookups))
	t.Logf("added: %d by Add, %d by AddMany, %d admitted, %d without committed, %d rolled back; calls failed: %d; "+
		"rebuilds: %d, %d of them resumed, %d failed, %d while another was under way; faults: %s",
		w.get(added), w.get(addedMany), w.get(admitted), w.get(uncommitted), w.get(rolledBack), w.get(failedAdds),
		w.get(rebuilt), w.get(resumed), w.get(failedRebuilds), w.get(outlocked), strings.Join(faults, ", "))
	if len(p.verdict) == 0 && !p.enough() {
		t.Error("too little has happened")
	}
}
