package promises

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// Callers gather while a round waits for a Redis that does not reply.

// silence is a hook. While it is on, Redis replies to nothing.
type silence struct{ on atomic.Bool }

var errSilence = errors.New("i/o timeout")

func (s *silence) wait(ctx context.Context) error {
	<-ctx.Done()
	return errSilence
}

func (s *silence) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *silence) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !s.on.Load() {
			return next(ctx, cmd)
		}
		cmd.SetErr(s.wait(ctx))
		return errSilence
	}
}

func (s *silence) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !s.on.Load() {
			return next(ctx, cmds)
		}
		s.wait(ctx)
		for _, cmd := range cmds {
			cmd.SetErr(errSilence)
		}
		return errSilence
	}
}

// whileSilent runs f in a bubble, with a process of default options, loads of 20 ms, and a Redis
// that has just stopped replying.
func whileSilent(t *testing.T, f func(t *testing.T, p process, d *table, s *silence)) {
	for name, bounded := range map[string]bool{"the client keeps deadlines": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				rdb := b.client(t)
				if bounded {
					rdb = keepsDeadlines(t, b)
				}
				d := newTable(map[int]string{0: "row", 1: "row", 2: "row", 3: "row", 4: "row", 5: "row", 6: "row",
					7: "row", 8: "row", 9: "row"})
				d.read = sleeps(20 * time.Millisecond)
				s := &silence{}
				rdb.AddHook(s)
				p := startOn(t, rdb, d, cacheaside.Options{}, nil)
				defer p.cache.Close()
				hear(t, p.Loader)
				p.want(t, 99, "", cacheaside.ErrNotFound)
				d.loads.Store(0)
				s.on.Store(true)
				f(t, p, d, s)
			})
		})
	}
}

// Redis stops replying, and a thousand callers come, each with a deadline just above ReadTimeout.
// All get a value from one load of each key, whether they arrive together or one by one, for one
// key or for many.
func TestGatheredWhileRedisHangs(t *testing.T) {
	type ask = func(ctx context.Context, p process, n int) error
	get := func(keys int) ask {
		return func(ctx context.Context, p process, n int) error {
			_, err := p.Get(ctx, n%keys)
			return err
		}
	}
	all := func(ctx context.Context, p process, _ int) error {
		_, err := p.GetMany(ctx, []int{0, 1, 2, 3, 4, 5, 6, 7}) // these are loaded concurrently
		return err
	}
	for name, c := range map[string]struct {
		ask   ask
		every time.Duration
		loads int64
	}{
		"of one key":                      {get(1), 0, 1},
		"of one key, one after the other": {get(1), 200 * time.Microsecond, 1},
		"of ten keys":                     {get(10), 0, 10},
		"of eight keys at once":           {all, 0, 8},
	} {
		t.Run(name, func(t *testing.T) {
			whileSilent(t, func(t *testing.T, p process, d *table, _ *silence) {
				var callers sync.WaitGroup
				var failed atomic.Int64
				for n := range 1000 {
					callers.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
						defer cancel()
						if c.ask(ctx, p, n) != nil {
							failed.Add(1)
						}
					})
					time.Sleep(c.every)
				}
				callers.Wait()
				if loads := d.loads.Load(); failed.Load() > 0 || loads != c.loads {
					t.Errorf("%d callers get no value, %d loads", failed.Load(), loads)
				}
				p.settle()
				time.Sleep(2 * time.Second)
				p.want(t, 1, "row", nil)
				if d.loads.Load() != c.loads+1 {
					t.Error("memory keeps an unconfirmed value for longer than MaxStaleness")
				}
			})
		})
	}
}

// A caller that comes after the start of a load and after an invalidation does not get the result
// of that load.
func TestNoStaleJoinWhileRedisHangs(t *testing.T) {
	whileSilent(t, func(t *testing.T, p process, d *table, s *silence) {
		reached, resume := d.pause(1)
		get := func() func(testing.TB) (string, error) {
			got := later(func() (string, error) { return p.Get(t.Context(), 1) })
			synctest.Wait()
			return got
		}
		first := get()
		time.Sleep(100 * time.Millisecond)
		second := get()
		reach(t, reached, "the load")
		if n := readerOf(p.Loader).Flights.Plain.Waiting("1"); n != 0 {
			t.Errorf("%d callers still wait for the next round", n)
		}
		s.on.Store(false)
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		third := get()
		many := later(func() (map[int]string, error) { return p.GetMany(t.Context(), []int{1, 2}) })
		synctest.Wait()
		resume()
		wantResult(t, first, "row")
		wantResult(t, second, "row")
		wantResult(t, third, "new")
		if got, err := many(t); err != nil || got[1] != "new" {
			t.Errorf("%v, %v", got, err)
		}
		p.want(t, 1, "new", nil)
	})
}

// A load continues for the callers that joined it after its first caller has left, and stops when
// they have left too.
func TestLoadContinuesForJoinedCallers(t *testing.T) {
	whileSilent(t, func(t *testing.T, p process, d *table, _ *silence) {
		loading := make(chan context.Context, 1)
		d.read = func(ctx context.Context, _ int64) error {
			loading <- ctx
			<-ctx.Done()
			return ctx.Err()
		}
		get := func() context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			go p.Get(ctx, 1)
			synctest.Wait()
			return cancel
		}
		leave := []context.CancelFunc{get(), get(), get()}
		load := <-loading
		for _, cancel := range leave {
			if load.Err() != nil {
				t.Error("the load stops although a caller waits for it")
			}
			cancel()
			synctest.Wait()
		}
		if load.Err() == nil {
			t.Error("the load continues without callers")
		}
	})
}

// The panic of a load reaches the callers that joined it.
func TestPanicReachesJoinedCallers(t *testing.T) {
	whileSilent(t, func(t *testing.T, p process, d *table, _ *silence) {
		d.read = func(context.Context, int64) error { panic("now") }
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				_, err := p.Get(t.Context(), 1)
				if _, ok := errors.AsType[*cacheaside.PanicError](err); !ok {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

// Without Redis, a caller that comes after an invalidation does not join a load that may read from
// a replica because it began before the hold.
func TestJoinedCallersSeeHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := cacheaside.NewLocal(&cacheaside.Options{ReplicaLag: time.Second, MaxLoads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "row", func(ctx context.Context, key string) (bool, error) {
			time.Sleep(20 * time.Millisecond)
			return cacheaside.PreferPrimary(ctx), nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		get := func(key string) func(testing.TB) (bool, error) {
			got := later(func() (bool, error) { return l.Get(t.Context(), key) })
			synctest.Wait()
			return got
		}
		get("2") // takes the only place
		before := get("1")
		if err := l.Invalidate(t.Context(), "1"); err != nil {
			t.Fatal(err)
		}
		after := get("1")
		if primary, err := before(t); primary || err != nil {
			t.Error(primary, err)
		}
		if primary, err := after(t); !primary || err != nil {
			t.Error(primary, err)
		}
	})
}
