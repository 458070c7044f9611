package promises

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
)

// A read of a fresh value starts a reload with the probability of XFetch, whether Redis or memory
// serves it.
func TestEarlyRefreshProbability(t *testing.T) {
	const cost = 50 * time.Millisecond
	trials, betas := 40, []float64{1}
	if accepting {
		trials, betas = 2000, []float64{1, 2}
	}
	for tier, o := range map[string]cacheaside.Options{"memory": {RedisTimeout: 10 * time.Second,
		MaxStaleness: time.Minute}, "redis": rarePolls} {
		for i, p := range []float64{0.5, 0.1, 0.01} {
			for _, beta := range betas {
				t.Run(fmt.Sprintf("%s/%v/beta=%v", tier, p, beta), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						_, b := embedded(t)
						d := newTable(map[int]string{1: "a"})
						d.read = sleeps(cost)
						c := start(t, b, d, o, livesWith(func(o *cacheaside.LoaderOptions) { o.EarlyRefresh = beta }))
						defer c.cache.Close()
						// Its calls are sequential.
						readerOf(c.Loader).Fetch.ExpRand = rand.New(rand.NewPCG(uint64(i), 7)).ExpFloat64
						left := time.Duration(-math.Log(p) * beta * float64(cost)).Round(time.Millisecond)
						want := math.Exp(-float64(left) / (beta * float64(cost)))
						for range trials {
							if err := c.Invalidate(t.Context(), 1); err != nil {
								t.Fatal(err)
							}
							// Entries count milliseconds.
							time.Sleep(time.Until(time.Now().Truncate(time.Millisecond).Add(time.Millisecond)))
							c.want(t, 1, "a", nil)
							c.settle()
							time.Sleep(time.Minute - left)
							c.want(t, 1, "a", nil)
							synctest.Wait()
							time.Sleep(cost + 10*time.Millisecond)
						}
						s := c.Stats()
						got, sigma := float64(s.EarlyRefreshes)/float64(trials),
							math.Sqrt(want*(1-want)/float64(trials))
						t.Logf("%v left of a load of %v: %.4f of %d reads, the formula says %.4f (%.1f standard "+
							"errors)", left, cost, got, trials, want, (got-want)/sigma)
						if math.Abs(got-want) > 4*sigma || s.BackgroundRefreshes != s.EarlyRefreshes || s.Stale != 0 {
							t.Errorf("%+v", s)
						}
						if hits := s.MemoryHits; (tier == "memory") != (hits == int64(trials)) {
							t.Errorf("%d hits in memory", hits)
						}
					})
				})
			}
		}
	}
}

// A key with a thousand reads a second and a load of 50 ms never expires.
func TestHotKeyNeverExpires(t *testing.T) {
	for tier, o := range map[string]cacheaside.Options{"memory": {RedisTimeout: 10 * time.Second,
		MaxStaleness: time.Minute}, "redis": rarePolls} {
		t.Run(tier, func(t *testing.T) {
			ends := 8
			if accepting {
				ends = 1000
			}
			synctest.Test(t, func(t *testing.T) {
				m, b := embedded(t)
				// It would sort all keys at each command; no hard end matters here.
				m.ClockTTL(false)
				d := newTable(map[int]string{1: "a"})
				d.read = sleeps(50 * time.Millisecond)
				p := start(t, b, d, o, livesWith(
					func(o *cacheaside.LoaderOptions) { o.TTL, o.EarlyRefresh = time.Second, 1 }))
				defer p.cache.Close()
				p.want(t, 1, "a", nil)
				p.settle()
				reads := 0
				for ; p.Stats().BackgroundRefreshes < int64(ends); reads++ {
					time.Sleep(time.Millisecond)
					began := time.Now()
					p.want(t, 1, "a", nil)
					if waited := time.Since(began); waited > 0 {
						t.Fatalf("read %d waits %v", reads, waited)
					}
				}
				s := p.Stats()
				t.Logf("%d reads, %d reloads, %d of them early; %d reads return a stale value",
					reads, s.BackgroundRefreshes, s.EarlyRefreshes, s.Stale)
				if s.Stale != 0 || s.EarlyRefreshes != s.BackgroundRefreshes {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A key that is not read is not reloaded. One that is read rarely is not reloaded early.
func TestUnreadKeysAreNotReloaded(t *testing.T) {
	bubble(t, rarelyPolling, livesWith(
		func(o *cacheaside.LoaderOptions) { o.EarlyRefresh = 1; o.TTL = 10 * time.Minute }), func(t *testing.T,
		_ backend, d *table, p, _ process) {
		d.read = sleeps(20 * time.Millisecond)
		p.want(t, 1, "a", nil)
		for range 9 {
			time.Sleep(time.Minute)
			p.want(t, 1, "a", nil)
		}
		time.Sleep(30 * time.Minute)
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

// A hot key in the memory of two processes: one reloads it, and the other takes the stored result.
func TestEarlyRefreshOfAFleet(t *testing.T) {
	bubble(t, cacheaside.Options{RedisTimeout: 10 * time.Second, MaxStaleness: time.Minute},
		livesWith(func(o *cacheaside.LoaderOptions) { o.TTL, o.EarlyRefresh = time.Second, 1 }),
		func(t *testing.T, _ backend, d *table, p, q process) {
			d.read = sleeps(20 * time.Millisecond)
			p.want(t, 1, "a", nil)
			q.want(t, 1, "a", nil)
			ttls := 15
			if accepting {
				ttls = 60
			}
			for range ttls * 1000 {
				time.Sleep(time.Millisecond)
				p.want(t, 1, "a", nil)
				q.want(t, 1, "a", nil)
			}
			s, u := p.Stats(), q.Stats()
			if d.most.Load() != 1 || s.Stale+u.Stale != 0 || s.Refused+u.Refused != 0 {
				t.Errorf("%d concurrent loads\n%+v\n%+v", d.most.Load(), s, u)
			}
			if n := int(d.loads.Load()); n < ttls*55/60 || n > ttls*90/60 {
				t.Errorf("%d loads in %d TTLs", n, ttls)
			}
			if misses := s.RedisHits + u.RedisHits; misses > int64(ttls) {
				t.Errorf("%d hits in Redis, want at most one per TTL", misses)
			}
		})
}
