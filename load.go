package cacheaside

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/limit"
)

// SetTTL sets how long the value that the running load returns may stay cached, instead of LoaderOptions.TTL (or NullTTL, if there is
// no such row). In a batch load it holds for all keys of the call. ctx is the load's context, or made from it; with any other ctx SetTTL
// does nothing, so that a load function can be called by itself. It is brought within MinTTL and MaxTTL, and Jitter applies. The last
// call counts.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if own, ok := ctx.Value(loadingKey{}).(*loadCall); ok {
		own.mu.Lock()
		defer own.mu.Unlock()
		own.ttl = min(max(ttl, MinTTL), MaxTTL)
	}
}

// loaded is what a load gave for one key: a value, that there is none, or an error.
type loaded[V any] struct {
	value V
	null  bool
	err   error
	ttl   time.Duration // as the load set it, or 0
	took  time.Duration
	began time.Time

	spared bool // err is that the database was not asked
}

// loadFunc loads rows. A key that is in neither its map nor its error has none.
type loadFunc[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// oneByOne makes a loadFunc of a function that loads one row. It is called with one key.
func oneByOne[K comparable, V any](load func(context.Context, K) (V, error)) loadFunc[K, V] {
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		v, err := load(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		return map[K]V{keys[0]: v}, nil
	}
}

// calling is how a load function is called.
type calling struct {
	begins     func() // called just before, unless nil
	waiting    func() // called when it begins to wait for other loads, unless nil
	background bool   // nobody waits for it who has nothing to show
}

// loadAll loads keys that have entered the gate, and lets them out again, whatever happens: an
// error's own methods may panic.
func (l *Loader[K, V]) loadAll(ctx context.Context, keys []K, how calling) (out []loaded[V]) {
	defer l.gate.leave(keys)
	defer func() {
		if p := recover(); p != nil {
			out = make([]loaded[V], len(keys))
			for i := range out {
				out[i].err = caught(p)
			}
		}
	}()
	return l.call(ctx, keys, how)
}

// call calls the load function on a goroutine of its own, and waits until it returns or its time is up: no longer, for it may ignore
// its context. If ctx ends the load is told, and waited for. It answers for each key.
func (l *Loader[K, V]) call(flight context.Context, keys []K, how calling) []loaded[V] {
	pass, err := l.admit(flight, how.background)
	if err != nil {
		return notMade[V](len(keys), err)
	}
	verdict := limit.Failed // also if an error's own methods panic
	defer func() { pass.End(verdict) }()
	ctx, cancel := context.WithTimeoutCause(flight, l.options.LoadTimeout, ErrLoadTimeout)
	defer cancel()
	own := &loadCall{ctx: ctx, pass: pass, waiting: how.waiting, keys: func() []asked { return l.asked(keys) }}
	ctx = context.WithValue(ctx, loadingKey{}, own)

	l.counters.loads.Add(int64(len(keys)))
	l.counters.loadCalls.Add(1)
	if how.begins != nil {
		how.begins()
	}
	ctx, end := l.observe(ctx, OpLoad, len(keys))
	var o outcome[K, V]
	defer func() { end(o.err) }()
	started := time.Now() // before it reads anything: see keep
	done := make(chan outcome[K, V], 1)
	go func() {
		var o outcome[K, V]
		returned := false
		defer func() {
			if !returned {
				o = outcome[K, V]{err: caught(recover())}
			}
			pass.Leave() // not before, whoever still waits
			done <- o
		}()
		arg := slices.Clone(keys) // which it may sort
		o.values, o.err = l.load(ctx, arg)
		returned = true
	}()

	deadline := time.NewTimer(l.options.LoadTimeout)
	defer deadline.Stop()
	select {
	case o = <-done:
	case <-deadline.C:
		l.counters.loadsLeft.Add(1)
		l.cache.journal.warn("a load that ignores its context was left running at LoadTimeout", l.name, nil)
		o.err = ErrLoadTimeout
	}
	if _, panicked := errors.AsType[*PanicError](o.err); panicked {
		l.cache.journal.warn("a load has panicked", l.name, o.err)
	}
	if errors.Is(o.err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrLoadTimeout) {
		o.err = errors.Join(ErrLoadTimeout, o.err)
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	out := l.sort(keys, o, own.ttl, started)
	note(l.returned, keys, out, started)
	verdict = l.judge(flight, o.err, out)
	return out
}

// outcome is what a load function has returned.
type outcome[K comparable, V any] struct {
	values map[K]V
	err    error
}

// sort gives each key what the load has for it: a value, nothing, or an error. A key of which a load that failed says nothing has
// failed too: only a load without an error says by its silence that there is no such row.
func (l *Loader[K, V]) sort(keys []K, o outcome[K, V], ttl time.Duration, began time.Time) []loaded[V] {
	took := time.Since(began)
	partial, _ := errors.AsType[*BatchError[K]](o.err)
	out := make([]loaded[V], len(keys))
	found, failed := 0, 0
	for i, key := range keys {
		value, ok := o.values[key]
		if ok {
			found++
		}
		err := o.err
		if partial != nil {
			if of := partial.Errs[key]; of != nil || ok {
				err = of
			}
		}
		out[i] = loaded[V]{ttl: ttl, took: took, began: began}
		switch {
		case err == nil && ok:
			out[i].value = value
		case err == nil, l.noRow(err) && (!l.batch || partial != nil && partial.Errs[key] != nil):
			out[i].null = true
		case l.noRow(err): // of a whole batch: who is told must not take it for the absence of his row
			out[i].err = errors.New("the batch load failed: " + err.Error())
			failed++
		default:
			out[i].err, out[i].spared = err, errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLoadCycle) // of another loader, which this one asks
			failed++
		}
	}
	l.counters.loadErrors.Add(int64(failed))
	l.counters.unasked.Add(int64(len(o.values) - found))
	if failed < len(keys) {
		l.loadTime.observe(took)
	}
	return out
}

// noRow tells whether a load has said that there is no such row. A panic never says so, whatever it was called with.
func (l *Loader[K, V]) noRow(err error) bool {
	if err == nil {
		return false
	}
	if _, panicked := errors.AsType[*PanicError](err); panicked {
		return false
	}
	return errors.Is(err, ErrNotFound) || errors.Is(err, sql.ErrNoRows) ||
		l.options.NotFound != nil && l.options.NotFound(err)
}

// gate lets one load of a key at a time run in a process, where Redis does not see to it that there is one in the fleet. It matters when Redis is down: a Get and
// a Refresh, which share no round, would both load. Who has a lease need not wait, but is waited for.
type gate[K comparable] struct {
	mu      sync.Mutex
	loading map[K]*loading
}

// loading is the loads of a key that are under way.
type loading struct {
	n    int
	done chan struct{} // closed when the last of them has ended
}

// enter lets in those keys that nobody is loading, or that are leased, as leased tells by their place. If there are none, busy is closed when one that is being loaded no longer is. Who has
// entered with some keys loads them, and leaves, before he waits for others: so two batches never wait for each other.
func (g *gate[K]) enter(keys []K, leased func(i int) bool) (entered []K, busy <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.loading == nil {
		g.loading = make(map[K]*loading)
	}
	for i, key := range keys {
		l := g.loading[key]
		switch {
		case l == nil:
			g.loading[key] = &loading{n: 1, done: make(chan struct{})}
		case leased(i):
			l.n++
		default:
			busy = l.done
			continue
		}
		entered = append(entered, key)
	}
	return entered, busy
}

func (g *gate[K]) leave(keys []K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range keys {
		if l := g.loading[key]; l.n > 1 {
			l.n--
		} else {
			delete(g.loading, key)
			close(l.done)
		}
	}
}
