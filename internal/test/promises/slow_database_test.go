package promises

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// Loads take 5 ms, but 3 of 100 take 2 s. A caller that finds a stale value waits at most
// SoftTimeout. A late result is stored unless it was invalidated in the meantime. For comparison,
// the waits without stale values are reported too.
func TestSlowDatabase(t *testing.T) {
	var out figures
	defer out.print(t)
	soft := cacheaside.LoaderOptions{TTL: 200 * time.Millisecond, StaleFor: time.Hour,
		SoftTimeout: 50 * time.Millisecond, EarlyRefresh: -1}
	without := soft
	without.StaleFor, without.SoftTimeout = -1, 0
	// Leases are not renewed within a load, so only the script that stores can notice a voided one.
	memory := steady
	redis := memory
	redis.MemoryBytes = -1
	for _, c := range []struct {
		name string
		o    cacheaside.Options
		lo   cacheaside.LoaderOptions
	}{
		{"redis", redis, soft},
		{"memory", memory, soft},
		{"redis-without", redis, without},
	} {
		stale := c.lo.StaleFor > 0
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				s := newSlow(t, b, c.o, c.lo)
				s.after, s.length = quickLoad-time.Millisecond, time.Second
				if accepting {
					s.length = 10 * time.Second
				}
				s.run(t)
				s.report(&out, c.name+", embedded:")
				if longest := quantile(s.waits, 1); stale && longest > soft.SoftTimeout || !stale &&
					longest < time.Second {
					t.Errorf("the longest wait is %v", longest)
				}
			})
			if !accepting {
				return
			}
			s := newSlow(t, realBackend(t), c.o, c.lo)
			s.after, s.length = 100*time.Millisecond, 20*time.Second
			s.run(t)
			s.report(&out, c.name+", real:")
			if p99 := quantile(s.waits, 0.99); stale && p99 > 80*time.Millisecond {
				t.Errorf("p99 %v", p99)
			}
		})
	}
}

const (
	slowKeys  = 40 // every second one is invalidated now and then
	slowLoad  = 2 * time.Second
	quickLoad = 5 * time.Millisecond
)

// slow is one run: two processes, and a database whose rows contain the number of the load that has
// read them.
type slow struct {
	b      backend
	length time.Duration
	// Time from the end of a late load to the check of its entry: enough for the store, too short
	// for another load.
	after time.Duration
	p     [2]reader
	loads atomic.Int64

	begun, acknowledged [slowKeys]atomic.Int64 // invalidations

	late                     sync.WaitGroup // checks of the stored results of late loads
	stored, refused, unclear atomic.Int64   // late loads
	failures                 atomic.Int64

	waits []time.Duration // of reads of keys that are never invalidated
}

func newSlow(t *testing.T, b backend, o cacheaside.Options, lo cacheaside.LoaderOptions) *slow {
	s := &slow{b: b}
	for i := range s.p {
		s.p[i] = newReaderOn(t, b.client(t), s.load, o, &lo)
		hear(t, s.p[i].Loader)
	}
	return s
}

func (s *slow) load(ctx context.Context, key int) (int64, error) {
	n := s.loads.Add(1)
	begun, acknowledged := s.begun[key].Load(), s.acknowledged[key].Load()
	takes := quickLoad
	if rand.New(rand.NewPCG(1, uint64(n))).IntN(100) < 3 {
		takes = slowLoad
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if takes == slowLoad {
		// One invalidation began and ended during the load.
		ended := s.acknowledged[key].Load() > max(acknowledged, begun)
		s.late.Go(func() { s.look(context.WithoutCancel(ctx), key, n, begun, ended) })
	}
	return n, nil
}

// look checks the entry in Redis after a late load has had time to be stored.
func (s *slow) look(ctx context.Context, key int, n, begun int64, invalidated bool) {
	time.Sleep(s.after)
	holds, err := s.b.admin.Get(ctx, redisKey(key)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.failures.Add(1)
		return
	}
	const header = 32
	own := len(holds) > header && holds[header:] == strconv.FormatInt(n, 10)
	switch {
	case invalidated && !own:
		s.refused.Add(1)
	case s.begun[key].Load() == begun && own:
		s.stored.Add(1)
	case invalidated || s.begun[key].Load() == begun:
		s.failures.Add(1)
	default: // an invalidation overlapped with its end
		s.unclear.Add(1)
	}
}

func (s *slow) run(t *testing.T) {
	readers := 8
	if accepting {
		readers = 16
	}
	for key := range slowKeys {
		s.p[0].Get(t.Context(), key)
	}
	parts := make([]seen, readers)
	ctx := context.WithoutCancel(t.Context())
	stopReaders := swarm(readers, 1, func(g int, r *rand.Rand) {
		key := r.IntN(slowKeys)
		began := time.Now()
		_, err := s.p[g%2].Get(ctx, key)
		if key%2 == 0 {
			parts[g].add(time.Since(began), err)
		}
		if err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
	})
	stopWriters := swarm(1, 2, func(_ int, r *rand.Rand) {
		s.invalidate(t, ctx, 1+2*r.IntN(slowKeys/2), r.IntN(2))
		time.Sleep(100 * time.Millisecond)
	})
	time.Sleep(s.length)
	for range 100 { // until there are enough late loads
		if s.stored.Load() >= 5 && s.refused.Load() >= 3 {
			break
		}
		time.Sleep(time.Second)
	}
	stopWriters()
	stopReaders()
	time.Sleep(slowLoad + time.Second) // operations in progress end
	s.late.Wait()
	for g := range parts {
		s.waits = append(s.waits, parts[g].waits...)
	}
	if s.failures.Load() > 0 || s.stored.Load() == 0 || s.refused.Load() == 0 {
		t.Errorf("of the late loads, %d have a wrong result, %d are stored, %d are refused",
			s.failures.Load(), s.stored.Load(), s.refused.Load())
	}
	for i := range s.p {
		s.p[i].cache.Close()
	}
}

// invalidate invalidates a key in one of the processes.
func (s *slow) invalidate(t *testing.T, ctx context.Context, key, by int) {
	n := s.begun[key].Add(1) // keys have one writer each
	if err := s.p[by].Invalidate(ctx, key); err != nil {
		t.Error(err)
	}
	s.acknowledged[key].Store(n)
}

func (s *slow) report(out *figures, name string) {
	stale := s.p[0].Stats().Stale + s.p[1].Stats().Stale
	out.add("%-24s %d reads, waits: p50 %v, p99 %v, the longest %v; stale rounds %d; loads of %v: %d stored, %d "+
		"refused since their keys had been invalidated (%d crossed)",
		name, len(s.waits), quantile(s.waits, 0.5), quantile(s.waits, 0.99), quantile(s.waits,
			1), stale, slowLoad, s.stored.Load(), s.refused.Load(), s.unclear.Load())
}
