package promises

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Writers omit the invalidation of a known share of their writes. Callers do not notice, and the
// shadow counts exactly how many reads would have been stale.
func TestShadowCountsStaleShare(t *testing.T) {
	for name, o := range map[string]cacheaside.Options{"memory": steady, "no memory": steadyNoMemory} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				const n, forgotten = 100, 17
				d := newTable(make(map[int]string))
				for i := range n {
					d.write(i, "old")
				}
				p := start(t, b, d, o, &cacheaside.LoaderOptions{Shadow: 1})
				writer := start(t, b, d, noMemory, nil)
				defer p.cache.Close()
				all := func(want string) {
					for i := range n {
						p.want(t, i, want, nil)
						synctest.Wait()
					}
					time.Sleep(2 * time.Second)
				}
				all("old")
				if s := p.Stats(); s.ShadowReads != n || s.ShadowMisses != n || s.ShadowCompared != 0 ||
					s.ShadowUndecided != 0 {
					t.Errorf("%+v", s)
				}
				all("old")
				for i := range n {
					d.write(i, "new")
					if i >= forgotten {
						if err := writer.Invalidate(t.Context(), i); err != nil {
							t.Fatal(err)
						}
					}
				}
				time.Sleep(time.Second)
				all("new")
				s := p.Stats()
				if s.ShadowStale != forgotten || s.ShadowCompared != n+forgotten || s.ShadowMisses != 2*n-forgotten ||
					s.ShadowUndecided != 0 {
					t.Errorf("%d stale of %d compared, %d misses, %d undecided", s.ShadowStale, s.ShadowCompared,
						s.ShadowMisses, s.ShadowUndecided)
				}
				// A difference is read twice.
				if s.Gets != 3*n+forgotten || s.MemoryHits+s.RedisHits != n+2*forgotten {
					t.Errorf("%d gets, %d hits", s.Gets, s.MemoryHits+s.RedisHits)
				}
				all("new")
				if got := p.Stats().ShadowStale; got != 2*forgotten {
					t.Errorf("after more reads, %d are stale", got)
				}
			})
		})
	}
}

// Rows are written, and invalidated a moment later, while several processes read them: nothing
// counts as stale. If a difference counted immediately, some reads would.
func TestShadowIgnoresRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{})
		const keys = 5
		for i := range keys {
			d.write(i, "0")
		}
		d.read = func(context.Context, int64) error {
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			return nil
		}
		o := steady
		p, q := start(t, b, d, o, &cacheaside.LoaderOptions{Shadow: 1}), start(t, b, d, o,
			&cacheaside.LoaderOptions{Shadow: 1})
		writer := start(t, b, d, noMemory, nil)
		defer p.cache.Close()
		defer q.cache.Close()
		var all sync.WaitGroup
		until := time.Now().Add(8 * time.Second)
		for w := range 2 {
			all.Go(func() {
				for i := 0; time.Now().Before(until); i++ {
					key := rand.IntN(keys)
					d.write(key, fmt.Sprint(w, i))
					time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
					if err := writer.Invalidate(context.Background(), key); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				}
			})
		}
		for _, r := range []process{p, p, q, q} {
			all.Go(func() {
				for time.Now().Before(until) {
					if _, err := r.Get(context.Background(), rand.IntN(keys)); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				}
			})
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		s := p.Stats()
		if s.ShadowStale != 0 || q.Stats().ShadowStale != 0 || s.ShadowCompared < 500 {
			t.Errorf("%d and %d are stale, of %d; %d undecided", s.ShadowStale, q.Stats().ShadowStale, s.ShadowCompared,
				s.ShadowUndecided)
		}
		t.Logf("%d reads: %d misses, %d compared, %d undecided", s.ShadowReads, s.ShadowMisses, s.ShadowCompared,
			s.ShadowUndecided)
	})
}

// The additional loads never exceed the share of all reads, even if all reads are of compared keys.
// About the share of the keys is compared.
func TestShadowLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{})
		p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{Shadow: 0.2})
		defer p.cache.Close()
		chosen, others := 0, 0
		for i := 0; chosen < 400; i++ {
			if text := fmt.Sprint(i); !readerOf(p.Loader).Shadow.Chosen(readerOf(p.Loader).Keys.Hash(text)) {
				others++
				continue
			}
			chosen++
			p.want(t, i, "", cacheaside.ErrNotFound)
			synctest.Wait()
		}
		if share := float64(chosen) / float64(chosen+others); share < 0.15 || share > 0.25 {
			t.Errorf("a share of %v is compared", share)
		}
		s := p.Stats()
		if most := int64(400*1.2 + audit.ShadowBurst); s.Loads > most || d.loads.Load() > most || s.ShadowMisses < 80 {
			t.Errorf("%d rows are loaded for 400 reads, %d misses", d.loads.Load(), s.ShadowMisses)
		}
		if s.ShadowMisses+s.ShadowUndecided != 400 {
			t.Errorf("%d misses, %d undecided", s.ShadowMisses, s.ShadowUndecided)
		}
	})
}

// Callers get their rows without waiting for the caches, whatever happens there.
func TestShadowReturnsRowsDespiteCacheFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		d := newTable(map[int]string{1: "a", 2: "b"})
		fails := errors.New("no Redis")
		hook := &brokenRedis{}
		rdb.AddHook(hook)
		o := cacheaside.Options{MemoryBytes: -1}
		broken := cacheaside.LoaderOptions{Shadow: 1, Key: cacheaside.KeyOf(func(k int) string {
			if k == 2 {
				panic("no text")
			}
			return fmt.Sprint(k)
		})}
		p := startOn(t, rdb, d, o, &broken)
		defer p.cache.Close()
		p.want(t, 2, "b", nil)
		hook.set(fails, 0)
		p.want(t, 1, "a", nil)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		s := p.Stats()
		if s.ShadowUndecided != 2 || s.ShadowCompared+s.ShadowMisses != 0 || d.loads.Load() != 2 {
			t.Errorf("%d undecided, %d loads", s.ShadowUndecided, d.loads.Load())
		}
		p.want(t, 3, "", cacheaside.ErrNotFound)
		got, err := p.GetMany(t.Context(), []int{1, 2, 3})
		if err != nil || len(got) != 2 || got[1] != "a" || got[2] != "b" {
			t.Errorf("%v, %v", got, err)
		}
		time.Sleep(5 * time.Second)

		hook.set(nil, 0)
		time.Sleep(5 * time.Second) // Redis is reachable again
		hook.set(nil, 200*time.Millisecond)
		began := time.Now()
		for range 500 {
			p.want(t, 1, "a", nil)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("callers wait for %v", took)
		}
		if n := readerOf(p.Loader).Shadow.UnderWay(); n > audit.ShadowsAtOnce || n == 0 {
			t.Errorf("%d comparisons are in progress", n)
		}
	})
}

// brokenRedis is a hook that fails or delays all commands.
type brokenRedis struct {
	mu   sync.Mutex
	err  error
	wait time.Duration
}

func (b *brokenRedis) set(err error, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err, b.wait = err, wait
}

func (b *brokenRedis) get() (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait, b.err
}

func (*brokenRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *brokenRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		wait, err := b.get()
		time.Sleep(wait)
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (b *brokenRedis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		wait, err := b.get()
		time.Sleep(wait)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// Batch loads, Fresh, Bypass, a failing load, a caller that leaves, and Close.
func TestShadowOfAllReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		c, err := cacheaside.New(b.client(t), &steady)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewBatchLoader(c, "row", func(_ context.Context, keys []int) (map[int]string, error) {
			rows := make(map[int]string)
			for _, k := range keys {
				switch {
				case k < 0:
					return nil, errors.New("negative")
				case k < 100:
					rows[k] = fmt.Sprint(k)
				}
			}
			return rows, nil
		}, &cacheaside.LoaderOptions{Shadow: 1})
		if err != nil {
			t.Fatal(err)
		}
		hear(t, l)
		for i := range 3 {
			got, err := l.GetMany(t.Context(), []int{1, 2, 100}, []cacheaside.ReadOption{cacheaside.Fresh}[:i/2]...)
			if err != nil || len(got) != 2 || got[1] != "1" {
				t.Errorf("%v, %v", got, err)
			}
			time.Sleep(time.Second)
		}
		s := l.Stats()
		if s.ShadowReads != 9 || s.ShadowMisses != 3 || s.ShadowCompared != 6 || s.ShadowStale != 0 ||
			s.MemoryHits != 3 || s.RedisHits != 3 || s.NullHits != 2 {
			t.Errorf("%+v", s)
		}
		if _, err := l.Get(t.Context(), -1); err == nil || err.Error() == "" {
			t.Error("a failing load returns no error")
		}
		_, err = l.GetMany(t.Context(), []int{-1, 1})
		if _, ok := errors.AsType[*cacheaside.BatchError[int]](err); !ok {
			t.Errorf("%v", err)
		}
		l.Bypass(true)
		if v, err := l.Get(t.Context(), 1); v != "1" || err != nil {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Second)
		if now := l.Stats(); now.ShadowReads != 13 || now.ShadowCompared != s.ShadowCompared {
			t.Errorf("%+v", now)
		}
		l.Bypass(false)
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := l.Get(gone, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		c.Close()
		if _, err := l.Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

// A shadow that is closed during a comparison ends immediately.
func TestShadowIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{Shadow: 1})
		p.want(t, 1, "old", nil)
		synctest.Wait()
		d.write(1, "new")
		p.want(t, 1, "new", nil)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		p.cache.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("Close takes %v", took)
		}
	})
}

// A row that is written again during the second check of a difference is undecided.
func TestShadowRowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{Shadow: 1})
		defer p.cache.Close()
		p.want(t, 1, "old", nil)
		synctest.Wait()
		d.write(1, "new") // without an invalidation
		p.want(t, 1, "new", nil)
		time.Sleep(audit.ConfirmAfter / 2)
		d.write(1, "newer")
		time.Sleep(audit.ConfirmAfter)
		if s := p.Stats(); s.ShadowUndecided != 1 || s.ShadowStale != 0 || s.ShadowCompared != 0 {
			t.Errorf("%d stale, %d undecided", s.ShadowStale, s.ShadowUndecided)
		}
	})
}
