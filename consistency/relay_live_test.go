package consistency

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/testenv"
)

// relayLive is a Cache of one process, with loaders of rows that all have the same value.
type relayLive struct {
	*testing.T
	cache *cacheaside.Cache
}

type row = cacheaside.Loader[string, int64]

func newRelayLive(t *testing.T, r *testenv.Redis) *relayLive {
	t.Helper()
	cache, err := cacheaside.New(r.Client(t), &cacheaside.Options{RedisTimeout: 500 * time.Millisecond, MemoryBytes: -1})
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

// Redis hangs while rows change, with keys, keys that are reloaded, and a whole loader in the queue: the caches of all processes forget them when it is back.
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
