package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/testenv"
)

// relayPatience is for what should come at once.
const relayPatience = 20 * time.Second

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

func relayUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > relayPatience {
			t.Fatalf("not within %v: %s", relayPatience, what)
		}
	}
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
	relayUntil(t, "an alert", func() bool { return alerts.Load() > 0 })
	r.Resume()
	relayUntil(t, "the end of the queue", func() bool {
		d, err := q.Depth(t.Context())
		return err == nil && d.Items == 0
	})
	for _, kind := range kinds {
		for _, text := range texts {
			if kind == "all" { // other processes learn of it within Options.MaxStaleness
				relayUntil(t, "the new row", func() bool { return other.get(theirs[kind], text) == 1 })
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

// watchedOutbox is a queue that knows who has what.
type watchedOutbox struct {
	*SQLOutbox
	mu     *sync.Mutex
	held   map[string]bool
	shared *int
}

func (q watchedOutbox) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	items, err := q.SQLOutbox.Claim(ctx, most, life)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range items {
		if q.held[item.ID] {
			*q.shared++
		}
		q.held[item.ID] = true
	}
	return items, err
}

func (q watchedOutbox) Done(ctx context.Context, items ...Item) error {
	q.mu.Lock()
	for _, item := range items {
		delete(q.held, item.ID)
	}
	q.mu.Unlock()
	return q.SQLOutbox.Done(ctx, items...)
}

// One, two and four relays empty an outbox: no item is with two of them, and together they are not slower.
func TestRelaysShareAnOutbox(t *testing.T) {
	r := testenv.SharedRedis(t)
	n := 3000
	if testenv.Accepting {
		n = 30_000
	}
	db := sqlx.NewDb(testenv.SharedMariaDB(t).DB(t), "mysql")
	var figures []string
	var speeds []float64
	for _, relays := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(relays), func(t *testing.T) {
			o, err := NewSQLOutbox(db, MySQL, nil)
			if err == nil {
				err = o.CreateTable(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			items := make([]Item, n)
			for i := range items {
				items[i] = Item{Key: relayKey(i)}
			}
			if err := o.Put(t.Context(), items...); err != nil {
				t.Fatal(err)
			}
			q := watchedOutbox{o, new(sync.Mutex), map[string]bool{}, new(int)}
			var all []*Relay
			began := time.Now()
			for range relays {
				all = append(all, newRelayLive(t, r).relay(q, RelayOptions{}))
			}
			done := func() (sum int) {
				for _, r := range all {
					sum += int(r.Stats().Done)
				}
				return sum
			}
			for deadline := time.Now().Add(3 * relayPatience); done() < n; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d done, by the first %+v", done(), n, all[0].Stats())
				}
			}
			speeds = append(speeds, float64(n)/time.Since(began).Seconds())
			figures = append(figures, fmt.Sprintf("%d: %.0f items/s", relays, speeds[len(speeds)-1]))
			q.mu.Lock()
			defer q.mu.Unlock()
			if *q.shared > 0 || done() != n {
				t.Errorf("%d items were with two, %d of %d done", *q.shared, done(), n)
			}
		})
	}
	t.Logf("relays, MariaDB and Redis on the same cores: %s", strings.Join(figures, ", "))
	if testenv.Accepting && len(speeds) == 3 && (speeds[1] < 0.8*speeds[0] || speeds[2] < 0.8*speeds[0]) {
		t.Errorf("more relays do less: %v", figures)
	}
}
