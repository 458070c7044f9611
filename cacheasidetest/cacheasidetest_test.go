package cacheasidetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/cacheasidetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// inAndOut runs f in a bubble and outside of one.
func inAndOut(t *testing.T, f func(t *testing.T)) {
	t.Run("in a bubble", func(t *testing.T) { synctest.Test(t, f) })
	t.Run("without", f)
}

func inBubble() bool { return time.Now().Year() == 2000 } // the start time of bubbles

// shortTimeout is a timeout that a test can wait for. In a bubble it is short, because a slow
// machine costs no time there.
func shortTimeout() time.Duration {
	if inBubble() {
		return 100 * time.Millisecond
	}
	return 4 * time.Second
}

// calm returns options with which no command times out and memory stays trusted on a busy machine.
// In a bubble these are the defaults.
func calm() *cacheaside.Options {
	if inBubble() {
		return nil
	}
	return &cacheaside.Options{RedisTimeout: testenv.Hang, MaxStaleness: time.Minute}
}

// rows stand in for a table.
type rows struct {
	mu    sync.Mutex
	row   string
	err   error
	loads atomic.Int64
}

func (r *rows) set(row string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.row, r.err = row, err
}

func (r *rows) load(context.Context, int) (string, error) {
	r.loads.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.row, r.err
}

// loader creates a loader of r in a process. Its TTLs are long, so that nothing expires by itself.
func (r *rows) loader(
	t *testing.T, p *cacheasidetest.Process, change ...func(*cacheaside.LoaderOptions),
) *cacheaside.Loader[int, string] {
	t.Helper()
	o := cacheaside.LoaderOptions{TTL: time.Hour, StaleFor: time.Hour, MemoryTTL: time.Hour, Jitter: -1}
	for _, f := range change {
		f(&o)
	}
	l, err := cacheaside.NewLoader(p.Cache, "row", r.load, &o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func gives(t *testing.T, l *cacheaside.Loader[int, string], want string, options ...cacheaside.ReadOption) {
	t.Helper()
	if got, err := l.Get(t.Context(), 1, options...); got != want || err != nil {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

// remembers reads until the value comes from the memory of the process.
func remembers(t *testing.T, p *cacheasidetest.Process, l *cacheaside.Loader[int, string]) {
	t.Helper()
	ctx := t.Context()
	l.Get(ctx, 1)
	p.AwaitInvalidations(t)
	hits := l.Stats().MemoryHits
	testenv.Eventually(t, "a hit in memory", func() bool {
		if _, err := l.Get(ctx, 1); err != nil {
			t.Fatal(err)
		}
		return l.Stats().MemoryHits > hits
	})
}

func TestProcesses(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, calm())
		d := &rows{row: "a"}
		p := d.loader(t, c)
		q := d.loader(t, c.Process(t))
		gives(t, p, "a")
		gives(t, q, "a")
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
		if s := q.Stats(); s.RedisHits != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestOptions(t *testing.T) {
	c := cacheasidetest.New(t, &cacheaside.Options{Prefix: "shop", MemoryBytes: -1})
	for _, p := range []*cacheasidetest.Process{c, c.Process(t)} {
		d := &rows{row: "a"}
		gives(t, d.loader(t, p), "a")
	}
	if keys := c.Redis.Server().Keys(); !slices.Contains(keys, "shop:row:1:{1}") {
		t.Error(keys)
	}
	c.Redis.EndTTL(t) // applies to this prefix too
	d := &rows{row: "b"}
	third := d.loader(t, c.Process(t))
	gives(t, third, "a")
	if s := third.Stats(); s.Stale != 1 {
		t.Errorf("%+v", s)
	}
}

func TestSettle(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, calm())
		c.Redis.Settle(t) // no process listens
		d := &rows{row: "a"}
		writer := d.loader(t, c)
		var others []*cacheaside.Loader[int, string]
		for range 3 {
			p := c.Process(t)
			others = append(others, d.loader(t, p))
			remembers(t, p, others[len(others)-1])
		}
		for i := range 20 {
			row := fmt.Sprint(i)
			d.set(row, nil)
			if err := writer.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			c.Redis.Settle(t)
			for _, l := range others {
				gives(t, l, row)
			}
		}
	})
}

// TestSettleLogsNothing checks that the message of Settle is not reported as a problem of the bus.
func TestSettleLogsNothing(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		log := &testenv.Log{}
		options := &cacheaside.Options{}
		if o := calm(); o != nil {
			*options = *o
		}
		options.Logger = log.Logger()
		c := cacheasidetest.New(t, options)
		l := (&rows{row: "a"}).loader(t, c)
		remembers(t, c, l)
		c.Redis.Settle(t)
		c.Cache.Close() // waits for its records
		if got := log.Take(); len(got) != 0 {
			t.Errorf("logged %q", got)
		}
	})
}

// Settle waits for messages that a process receives late.
func TestSettleWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheasidetest.New(t, nil)
		d := &rows{row: "a"}
		other := c.Process(t)
		writer, reader := d.loader(t, c), d.loader(t, other)
		remembers(t, other, reader)
		other.Hang()
		d.set("b", nil)
		if err := writer.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		gives(t, reader, "a") // within MaxStaleness
		go func() {
			time.Sleep(100 * time.Millisecond)
			other.Join(t)
		}()
		c.Redis.Settle(t) // it does not wait for a process that is cut off
		gives(t, reader, "a")
		time.Sleep(101 * time.Millisecond)
		c.Redis.Settle(t)
		gives(t, reader, "b")
	})
}

func TestForget(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, calm())
		c.Forget(t) // does nothing
		other := c.Process(t)
		d := &rows{row: "a"}
		p, q := d.loader(t, c), d.loader(t, other)
		remembers(t, c, p)
		remembers(t, other, q)
		before, beside := p.Stats(), q.Stats()
		c.Forget(t)
		gives(t, p, "a")
		gives(t, q, "a")
		if s := p.Stats(); s.MemoryHits != before.MemoryHits || s.RedisHits != before.RedisHits+1 ||
			s.RedisErrors != 0 {
			t.Errorf("%+v", s)
		}
		if s := q.Stats(); s.MemoryHits != beside.MemoryHits+1 {
			t.Errorf("Forget affects another process: %+v", s)
		}
		remembers(t, c, p)
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

func TestEndTTL(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, calm())
		other := c.Process(t)
		d := &rows{row: "a"}
		p, q := d.loader(t, c), d.loader(t, other)
		remembers(t, c, p)
		remembers(t, other, q)
		d.set("", errors.New("broken"))
		c.Redis.EndTTL(t)
		for _, l := range []*cacheaside.Loader[int, string]{p, q} {
			gives(t, l, "a")
			if s := l.Stats(); s.Stale == 0 {
				t.Errorf("%+v", s)
			}
		}
		testenv.Eventually(t, "another load", func() bool { return p.Stats().LoadErrors+q.Stats().LoadErrors > 0 })
		gives(t, p, "a")
	})
}

// EndTTL does not touch keys of other programs.
func TestEndTTLOfOthers(t *testing.T) {
	c := cacheasidetest.New(t, &cacheaside.Options{StrictWrites: true, LeaseTTL: time.Minute})
	rdb := c.Redis.Client(t)
	for _, key := range []string{"cacheaside", "cacheaside:x", "other:row:1:{1}", "cacheasidetest:row:1:{1}"} {
		if err := rdb.Set(t.Context(), key, "mine", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d := &rows{row: "a"}
	gives(t, d.loader(t, c), "a")
	hold, err := c.Cache.Hold(t.Context(), cacheaside.Key{Loader: "row", Text: "2"})
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Invalidate(t.Context())
	before := c.Redis.Server().Keys()
	c.Redis.EndTTL(t)
	// The mark of the hold is not an entry.
	if after := c.Redis.Server().Keys(); fmt.Sprint(after) != fmt.Sprint(before) && len(after) != len(before)-1 {
		t.Errorf("keys %q, want %q", after, before)
	}
	for _, key := range []string{"cacheaside", "cacheaside:x", "other:row:1:{1}", "cacheasidetest:row:1:{1}"} {
		if v := rdb.Get(t.Context(), key).Val(); v != "mine" {
			t.Errorf("%s: %q", key, v)
		}
	}
}

func TestEndLife(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, calm())
		other := c.Process(t)
		d := &rows{row: "a"}
		p := d.loader(t, c)
		q := d.loader(t, other, func(o *cacheaside.LoaderOptions) { o.StaleFor = cacheaside.Forever })
		remembers(t, other, q)
		remembers(t, c, p)
		d.set("b", nil)
		c.Redis.EndLife(t)
		gives(t, q, "b")
		gives(t, p, "b")
		if s := p.Stats(); s.Stale != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestEmpty(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		c := cacheasidetest.New(t, &cacheaside.Options{RedisTimeout: shortTimeout()})
		d := &rows{row: "a"}
		p := d.loader(t, c)
		remembers(t, c, p)
		if err := p.Invalidate(t.Context(), 1); err != nil { // a message is lost
			t.Fatal(err)
		}
		remembers(t, c, p)
		d.set("b", nil)
		c.Redis.Empty(t)
		if inBubble() { // otherwise the process may be late, after its next poll
			gives(t, p, "a") // the memory tier has not noticed
		}
		gives(t, p, "b", cacheaside.Fresh) // a cached script is sent again
		if keys := c.Redis.Server().Keys(); len(keys) == 0 {
			t.Error("no key is stored after Empty")
		}
		if inBubble() {
			time.Sleep(600 * time.Millisecond) // more than a quarter of MaxStaleness
			gives(t, p, "b")
		}
		testenv.Eventually(t, "memory that has noticed", func() bool {
			row, err := p.Get(t.Context(), 1)
			return err == nil && row == "b"
		})
	})
}

// Reads follow the loaders' RedisDown policy, under each fault of the server.
func TestFaultsOfRedis(t *testing.T) {
	for name, fault := range map[string]func(*cacheasidetest.Redis){
		"killed":  (*cacheasidetest.Redis).Kill,
		"hangs":   (*cacheasidetest.Redis).Hang,
		"loading": func(r *cacheasidetest.Redis) { r.Fail("LOADING Redis is loading the dataset in memory") },
		"replica": func(r *cacheasidetest.Redis) { r.Fail("READONLY You can't write against a read only replica.") },
	} {
		t.Run(name, func(t *testing.T) {
			inAndOut(t, func(t *testing.T) {
				o := &cacheaside.Options{RedisTimeout: shortTimeout(), MemoryBytes: -1}
				if name != "hangs" && !inBubble() {
					o.RedisTimeout = testenv.Hang // no operation waits for it
				}
				c := cacheasidetest.New(t, o)
				other := c.Process(t)
				d := &rows{row: "a"}
				p := d.loader(t, c)
				q := d.loader(t, other, func(o *cacheaside.LoaderOptions) { o.RedisDown = cacheaside.FailWhenDown })
				gives(t, p, "a")
				gives(t, q, "a")
				fault(c.Redis)
				d.set("b", nil)
				gives(t, p, "b")
				if _, err := q.Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
					t.Error(err)
				}
				if s := p.Stats(); s.RedisDown == 0 || s.Unvalidated == 0 {
					t.Errorf("%+v", s)
				}
				if name == "hangs" && !inBubble() {
					t.Log("only the bubble tests a write, which takes four timeouts")
				} else if err := p.Invalidate(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
					t.Error(err)
				}
				third := d.loader(t, c.Process(t),
					func(o *cacheaside.LoaderOptions) { o.RedisDown = cacheaside.FailWhenDown })
				// The fault applies to it from the start.
				if _, err := third.Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
					t.Error(err)
				}
				c.Redis.Restore(t)
				for _, l := range []*cacheaside.Loader[int, string]{p, q, third} {
					before := l.Stats()
					if err := l.Invalidate(t.Context(), 1); err != nil {
						t.Error(err)
					}
					gives(t, l, "b")
					if s := l.Stats(); s.Unvalidated != before.Unvalidated || s.RedisDown != before.RedisDown {
						t.Errorf("the loader still treats Redis as down: %+v", s)
					}
				}
			})
		})
	}
}

// A fault of one process does not affect another.
func TestFaultsOfAProcess(t *testing.T) {
	for name, fault := range map[string]func(
		*cacheasidetest.Process){"cut": (*cacheasidetest.Process).Cut, "hangs": (*cacheasidetest.Process).Hang} {
		t.Run(name, func(t *testing.T) {
			inAndOut(t, func(t *testing.T) {
				staleness := 200 * time.Millisecond
				if !inBubble() {
					staleness = 3 * time.Second
				}
				c := cacheasidetest.New(t, &cacheaside.Options{RedisTimeout: shortTimeout(), MaxStaleness: staleness})
				other := c.Process(t)
				d := &rows{row: "a"}
				p, q := d.loader(t, c), d.loader(t, other)
				remembers(t, c, p)
				remembers(t, other, q)
				fault(other)
				d.set("b", nil)
				if err := p.Invalidate(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				gives(t, p, "b")
				time.Sleep(staleness)
				gives(t, q, "b") // q recovers by itself
				if s := q.Stats(); s.Unvalidated == 0 {
					t.Errorf("%+v", s)
				}
				if s := p.Stats(); s.RedisErrors != 0 || s.Unvalidated != 0 {
					t.Errorf("%+v", s)
				}
				other.Join(t)
				before := q.Stats().Unvalidated
				gives(t, q, "b", cacheaside.Fresh)
				if s := q.Stats(); s.Unvalidated != before || s.Bus.Trusted != s.Bus.Ranges {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Commands that a process has sent while it hung arrive afterwards.
func TestHangKeepsWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheasidetest.New(t, nil)
		c.Hang()
		d := &rows{row: "a"}
		l := d.loader(t, c)
		done := make(chan error, 1)
		go func() { done <- l.Invalidate(context.Background(), 1) }()
		time.Sleep(time.Second)
		select {
		case err := <-done:
			t.Fatal("the invalidation does not hang: ", err)
		default:
		}
		c.Join(t)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A pipeline that exceeds all buffers does not deadlock with its replies.
func TestLongPipeline(t *testing.T) {
	inAndOut(t, func(t *testing.T) {
		// For a busy machine.
		rdb := cacheasidetest.New(t, calm()).Redis.Client(t).WithTimeout(time.Minute)
		pipe := rdb.Pipeline()
		for i := range 5_000 {
			pipe.Set(t.Context(), fmt.Sprint("key", i%100),
				"a value of some length, so that it fills what lies between", 0)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The lives of a value, as in the package comment.
func TestTTLsAreInDocumentedRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheasidetest.New(t, nil)
		table := map[int]string{1: "Ada"}
		names := NewNames(table, c.Cache)
		for _, step := range []struct {
			sleep time.Duration
			want  string
		}{{0, "Ada"}, {8 * time.Minute, "Ada"}, {4 * time.Minute, "Grace"}} {
			time.Sleep(step.sleep)
			if name, err := names.Get(t.Context(), 1); name != step.want || err != nil {
				t.Errorf("after %v: %s, %v", step.sleep, name, err)
			}
			table[1] = "Grace" // without an invalidation
		}
	})
}

// fatal is a test that records how it ends.
type fatal struct {
	testing.TB
	message string
}

type ended struct{}

func (f *fatal) Helper() {}
func (f *fatal) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(ended{})
}

// Helpers that fail say why, and show no key or value.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheasidetest.New(t, nil)
		other := c.Process(t)
		d := &rows{row: "secret"}
		l := d.loader(t, c)
		remembers(t, c, l)
		for want, f := range map[string]func(t testing.TB){
			"cacheasidetest: AwaitInvalidations: this process has not subscribed: it has read nothing, or only with loaders without a memory tier": other.AwaitInvalidations,
			"cacheasidetest: Forget of a process that hangs: Join it, or Restore Redis, first":                                                     func(t testing.TB) { c.Hang(); c.Forget(t) },
			"cacheasidetest: Forget of a process that is cut off from Redis: Join it, or Restore Redis, first":                                     func(t testing.TB) { c.Cut(); c.Forget(t) },
			"cacheasidetest: EndTTL: LOADING Redis is loading the dataset in memory":                                                               func(t testing.TB) { c.Redis.Fail("LOADING Redis is loading the dataset in memory"); c.Redis.EndTTL(t) },
			"cacheasidetest: Empty: LOADING Redis is loading the dataset in memory":                                                                func(t testing.TB) { c.Redis.Fail("LOADING Redis is loading the dataset in memory"); c.Redis.Empty(t) },
			"cacheasidetest: cacheaside: Options.Prefix \"a b\": only letters, digits, '_', '.' and '-'":                                           func(t testing.TB) { cacheasidetest.New(t, &cacheaside.Options{Prefix: "a b"}) },
			"cacheasidetest: this process does not reach Redis":                                                                                    func(t testing.TB) { c.Redis.Fail("READONLY"); c.Join(t) },
		} {
			f1 := &fatal{TB: t}
			func() {
				defer func() {
					if r := recover(); r != (ended{}) {
						t.Errorf("%s: %v", want, r)
					}
				}()
				f(f1)
			}()
			if f1.message != want {
				t.Errorf("got  %q\nwant %q", f1.message, want)
			}
			c.Redis.Restore(t)
			remembers(t, c, l) // includes the emptied key
		}
	})
}
