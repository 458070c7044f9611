package consistency

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// relayLive is a Cache of one process, with loaders of rows that all have the same value.
type relayLive struct {
	*testing.T
	cache *cacheaside.Cache
}

type row = cacheaside.Loader[string, int64]

func newRelayLive(t *testing.T, r *testenv.Redis) *relayLive {
	t.Helper()
	cache, err := cacheaside.New(r.Client(t),
		&cacheaside.Options{RedisTimeout: 500 * time.Millisecond, MemoryBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	return &relayLive{T: t, cache: cache}
}

func (l *relayLive) loader(name string, rows *atomic.Int64) (_ *row, loads *atomic.Int64) {
	l.Helper()
	loads = new(atomic.Int64)
	loader, err := cacheaside.NewLoader(l.cache, name, func(context.Context, string) (int64, error) {
		loads.Add(1)
		return rows.Load(), nil
	}, nil)
	if err != nil {
		l.Fatal(err)
	}
	return loader, loads
}

func (l *relayLive) get(from *row, key string) int64 {
	l.Helper()
	v, err := from.Get(l.Context(), key)
	if err != nil {
		l.Fatal(err)
	}
	return v
}

// relay runs a relay until the test ends.
func (l *relayLive) relay(q Queue, o RelayOptions) *Relay {
	l.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	r, err := NewRelay(l.cache, q, &o)
	if err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			l.Errorf("Run: %v", err)
		}
	})
	l.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return r
}

// Redis hangs while rows change, with keys, keys that are reloaded, and a whole loader in the
// queue: the caches of all processes forget them when it is back.
func TestRelayLive(t *testing.T) {
	r := testenv.SharedRedis(t)
	here, other := newRelayLive(t, r), newRelayLive(t, r)
	q := NewMemoryQueue(0)
	var alerts, rows atomic.Int64
	relay := here.relay(q, RelayOptions{AlertAt: 1, OnAlert: func(a Alert) {
		if errors.Is(a.Err, cacheaside.ErrRedis) {
			alerts.Add(1)
		}
	}})
	kinds := []string{"key", "reload", "all"}
	texts := []string{"a", "b"}
	var items []Item
	mine, theirs, loads := map[string]*row{}, map[string]*row{}, map[string]*atomic.Int64{}
	for _, kind := range kinds {
		mine[kind], loads[kind] = here.loader(kind, &rows)
		theirs[kind], _ = other.loader(kind, &rows)
		for _, text := range texts {
			here.get(mine[kind], text)
			item := Item{Key: mine[kind].Key(text), Reload: kind == "reload"}
			if kind == "all" {
				item.Key = mine[kind].AllKeys()
			}
			items = append(items, item)
		}
	}
	r.Pause()
	defer r.Resume()
	rows.Add(1)
	if err := q.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "an alert", func() bool { return alerts.Load() > 0 })
	r.Resume()
	testenv.Eventually(t, "the end of the queue", func() bool {
		d, err := q.Depth(t.Context())
		return err == nil && d.Items == 0
	})
	for _, kind := range kinds {
		for _, text := range texts {
			if kind == "all" { // other processes learn of it within Options.MaxStaleness
				testenv.Eventually(t, "the new row", func() bool { return other.get(theirs[kind], text) == 1 })
			} else if got := other.get(theirs[kind], text); got != 1 {
				t.Errorf("%s of %s is still %d", text, kind, got)
			}
			if got := here.get(mine[kind], text); got != 1 {
				t.Errorf("%s of %s is still %d here", text, kind, got)
			}
		}
	}
	if st := relay.Stats(); st.Failed == 0 || st.Alerts == 0 || st.Out || st.NotReloaded > 0 {
		t.Errorf("%+v", st)
	}
	if n := loads["reload"].Load(); n < 2*int64(len(texts)) {
		t.Errorf("%d loads of what was to be reloaded", n)
	}
}

// hanging is a filter that says "maybe", and whose Add blocks until goOn is closed.
type hanging struct{ goOn chan struct{} }

func (hanging) MightContain(context.Context, string) (bool, error) { return true, nil }
func (hanging) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	return slices.Repeat([]bool{true}, len(keys)), nil
}
func (hanging) AddMany(context.Context, []string) error { return nil }
func (hanging) NotFound(int)                            {}

func (h hanging) Inserting(ctx context.Context, _ []string) (func(context.Context) error, error) {
	select {
	case <-h.goOn:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A hanging filter keeps no keys stale, neither of other loaders nor of its own. Its items are done
// once it resumes.
func TestRelayLiveHangs(t *testing.T) {
	l := newRelayLive(t, testenv.SharedRedis(t))
	q := NewMemoryQueue(0)
	var rows atomic.Int64
	f := hanging{make(chan struct{})}
	bad, err := cacheaside.NewLoader(l.cache, "bad",
		func(context.Context, string) (int64, error) { return rows.Load(), nil }, &cacheaside.LoaderOptions{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	good, _ := l.loader("good", &rows)
	for n := range 20 {
		l.get(bad, strconv.Itoa(n))
		l.get(good, strconv.Itoa(n))
	}
	relay := l.relay(q, RelayOptions{ClaimFor: time.Second})
	rows.Add(1)
	for n := range 20 {
		if err := q.Put(t.Context(), Item{Key: bad.Key(strconv.Itoa(n))},
			Item{Key: good.Key(strconv.Itoa(n))}); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []*row{good, bad} {
		for n := range 20 {
			testenv.Eventually(t, "the new row", func() bool { return l.get(from, strconv.Itoa(n)) == 1 })
		}
	}
	testenv.Eventually(t, "the good ones are done", func() bool { return relay.Stats().Done == 20 })
	testenv.Eventually(t, "a look at what is left", func() bool { return relay.Stats().Depth.Items == 20 })
	close(f.goOn)
	testenv.Eventually(t, "all are done", func() bool { return relay.Stats().Done == 40 })
}

// A closed cache that another loader's load function uses does not end the relay. Only the relay's
// own cache does, with an alert.
func TestRelayLiveClosed(t *testing.T) {
	r := testenv.SharedRedis(t)
	l, other := newRelayLive(t, r), newRelayLive(t, r)
	q := NewMemoryQueue(0)
	var rows atomic.Int64
	inner, _ := other.loader("inner", &rows)
	outer, err := cacheaside.NewLoader(l.cache, "outer",
		func(ctx context.Context, key string) (int64, error) { return inner.Get(ctx, key) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := l.loader("good", &rows)
	l.get(good, "1")
	other.cache.Close()
	alerts := make(chan Alert, 10)
	relay, err := NewRelay(l.cache, q,
		&RelayOptions{Logger: slog.New(slog.DiscardHandler), OnAlert: func(a Alert) { alerts <- a }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(t.Context()) }()
	put := func(items ...Item) {
		t.Helper()
		if err := q.Put(t.Context(), items...); err != nil {
			t.Fatal(err)
		}
	}
	put(Item{Key: outer.Key("1"), Reload: true})
	testenv.Eventually(t, "what cannot be reloaded is invalidated",
		func() bool { return relay.Stats().NotReloaded == 1 })
	rows.Add(1)
	put(Item{Key: good.Key("1")})
	testenv.Eventually(t, "the new row", func() bool { return l.get(good, "1") == 1 })
	l.cache.Close()
	put(Item{Key: good.Key("1")})
	if err := testenv.Receive(t, "the end", ended); !errors.Is(err, cacheaside.ErrClosed) || !relay.Stats().Ended {
		t.Errorf("%v, %+v", err, relay.Stats())
	}
	if a := testenv.Receive(t, "an alert", alerts); !errors.Is(a.Err, cacheaside.ErrClosed) {
		t.Errorf("%+v", a)
	}
}
