package canal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// told is a Source that delivers the batches of a test.
type told struct {
	begins event.Position // where it listens from, unless it gets a position
	in     chan any       // a Batch, or the error with which it ends

	mu    sync.Mutex
	needs []event.Need
	acked []event.Position
}

func (t *told) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	t.mu.Lock()
	t.needs = append(t.needs, need)
	t.mu.Unlock()
	at := need.From
	if at == "" {
		at = t.begins
	}
	first := event.Batch{Position: at, Time: time.Now()}
	for next := any(first); ; {
		switch next := next.(type) {
		case nil:
			return nil
		case func():
			next()
		case error:
			return next
		case event.Batch:
			select {
			case deliver <- next:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case next = <-t.in:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *told) runs() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.needs)
}

// inMemory is a Checkpoint.
type inMemory struct {
	mu    sync.Mutex
	at    event.Position
	saves []event.Position
	fail  error
}

func (i *inMemory) Load(context.Context) (event.Position, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.at, i.fail
}

func (i *inMemory) Save(_ context.Context, p event.Position, _ int64) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fail != nil {
		return i.fail
	}
	i.at, i.saves = p, append(i.saves, p)
	return nil
}

func (i *inMemory) last() event.Position {
	p, _ := i.Load(context.Background())
	return p
}

// lot is a Parking.
type lot struct {
	mu     sync.Mutex
	parked []parking.Parked
}

func (l *lot) Park(_ context.Context, p parking.Parked) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked = append(l.parked, p)
	return nil
}

func (l *lot) all() []parking.Parked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parked
}

// world is two processes with memory tiers, tables that their loaders read, and a Consumer in one
// of them.
type world struct {
	*testing.T
	redis      *miniredis.Miniredis
	rdb        *redis.Client
	cache      *cacheaside.Cache
	caches     []*cacheaside.Cache // all, closed in the bubble
	users      *cacheaside.Loader[int64, string]
	byEmail    *cacheaside.Loader[string, string]
	other      *cacheaside.Loader[int64, string]
	source     *told
	checkpoint *inMemory
	parking    *lot
	alerts     chan Alert
	options    Options
	bindings   []Binding

	mu   sync.Mutex
	rows map[any]string

	*Consumer
	ended chan error
	stop  context.CancelFunc
}

// in runs f in a bubble.
func in(t *testing.T, f func(x *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		x := &world{T: t, redis: m, rdb: rdb, source: &told{begins: "0", in: make(chan any, 100)},
			checkpoint: &inMemory{at: "0"}, parking: &lot{}, alerts: make(chan Alert, 100), rows: map[any]string{}}
		x.cache = x.process()
		x.users = loader[int64](x, x.cache, "user")
		x.byEmail = loader[string](x, x.cache, "user-by-email")
		x.other = loader[int64](x, x.process(), "user")
		x.options = Options{Parking: x.parking, OnAlert: func(a Alert) { x.alerts <- a }}
		x.bindings = []Binding{Bind(x.users, "shop", "users", IntColumn[int64]("id")),
			Bind(x.byEmail, "shop", "users", TextColumn[string]("email"))}
		defer func() {
			if x.stop != nil {
				x.end()
			}
			for _, c := range x.caches {
				c.Close()
			}
		}()
		f(x)
	})
}

func (w *world) process() *cacheaside.Cache {
	c, err := cacheaside.New(w.rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		MaxStaleness: time.Minute})
	w.check(err)
	w.caches = append(w.caches, c)
	return c
}

func loader[K comparable](x *world, c *cacheaside.Cache, name string) *cacheaside.Loader[K, string] {
	l, err := cacheaside.NewLoader(c, name, func(_ context.Context, key K) (string, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		v, ok := x.rows[key]
		if !ok {
			return "", cacheaside.ErrNotFound
		}
		return v, nil
	}, &cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: time.Hour, EarlyRefresh: -1})
	x.check(err)
	return l
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// set changes what a loader finds, and says nothing of it.
func (w *world) set(key any, v string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v == "" {
		delete(w.rows, key)
	} else {
		w.rows[key] = v
	}
}

func (w *world) start() {
	w.Helper()
	var err error
	w.Consumer, err = NewConsumer(w.cache, w.source, w.checkpoint, w.bindings, &w.options)
	w.check(err)
	w.begin()
}

func (w *world) begin() {
	ctx, stop := context.WithCancel(w.Context())
	w.stop, w.ended = stop, make(chan error, 1)
	go func() { w.ended <- w.Consumer.Run(ctx) }()
	synctest.Wait()
}

// end stops the Consumer.
func (w *world) end() {
	w.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		w.Error(err)
	}
	w.stop = nil
}

// tell has the Source deliver changes, up to a position, and waits until everything is idle.
func (w *world) tell(p event.Position, changes ...event.Change) {
	w.Helper()
	w.source.in <- event.Batch{Changes: changes, Position: p, Time: time.Now(), Ack: func() {
		w.source.mu.Lock()
		defer w.source.mu.Unlock()
		w.source.acked = append(w.source.acked, p)
	}}
	synctest.Wait()
}

// Rows and changes of shop.users.
var (
	columns, row           = shop.Columns, shop.Row
	insert, update, remove = shop.Insert, shop.Update, shop.Delete
	errUnknown, errOmitted = shop.ErrUnknown, shop.ErrOmitted
)

// reads fails unless a loader finds want; "" for no row.
func reads[K comparable](x *world, l *cacheaside.Loader[K, string], key K, want string) {
	x.Helper()
	got, err := l.Get(x.Context(), key)
	if got != want || (want == "") != errors.Is(err, cacheaside.ErrNotFound) || want != "" && err != nil {
		x.Fatalf("%v is %q, %v; want %q", key, got, err, want)
	}
}

// alerted returns the alerts since its last call.
func (w *world) alerted() (all []string) {
	synctest.Wait()
	for {
		select {
		case a := <-w.alerts:
			all = append(all, fmt.Sprint(a.Kind, " ", a.Binding))
		default:
			return all
		}
	}
}
