package cacheaside

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// SetTTL sets how long the value that the running load returns may stay cached, instead of LoaderOptions.TTL (or NullTTL, if it
// returns ErrNotFound). ctx is the load's context, or made from it; with any other ctx SetTTL does nothing, so that a load function
// can be called by itself. It is brought within MinTTL and MaxTTL, and Jitter applies. The last call counts.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if own, ok := ctx.Value(ownTTLKey{}).(*ownTTL); ok {
		own.mu.Lock()
		defer own.mu.Unlock()
		own.ttl = min(max(ttl, MinTTL), MaxTTL)
	}
}

type ownTTLKey struct{}

type ownTTL struct {
	mu  sync.Mutex
	ttl time.Duration // 0: not set
}

// loaded is what a load gave: a value, or that there is none.
type loaded[V any] struct {
	value V
	null  bool
	ttl   time.Duration // as the load set it, or 0
	took  time.Duration
}

// call calls the load function on a goroutine of its own, and waits until it returns or its time is up: no longer, for it may ignore
// its context. If ctx ends the load is told, and waited for. One load of a key at a time runs in this process, whoever asks for it.
func (l *Loader[K, V]) call(ctx context.Context, key K) (loaded[V], error) {
	if err := l.enter(ctx, key); err != nil {
		return loaded[V]{}, err
	}
	defer l.leave(key)
	ctx, cancel := context.WithTimeoutCause(ctx, l.options.LoadTimeout, ErrLoadTimeout)
	defer cancel()
	own := &ownTTL{}
	ctx = context.WithValue(ctx, ownTTLKey{}, own)

	l.counters.loads.Add(1)
	started := time.Now()
	type outcome struct {
		value V
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		returned := false
		defer func() {
			if !returned && mutant.Active != mutant.PanicEscapes {
				o.err = caught(recover())
			}
			done <- o
		}()
		o.value, o.err = l.load(ctx, key)
		returned = true
	}()

	limit := l.options.LoadTimeout
	if mutant.Active == mutant.LoadUnbounded {
		limit = 1000 * time.Hour
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	var o outcome
	select {
	case o = <-done:
	case <-deadline.C:
		l.counters.loadsLeft.Add(1)
		o.err = ErrLoadTimeout
	}
	out := loaded[V]{value: o.value, took: time.Since(started)}
	own.mu.Lock()
	out.ttl = own.ttl
	own.mu.Unlock()
	switch {
	case o.err == nil:
		l.loadTime.observe(out.took)
	case noRow(o.err):
		l.loadTime.observe(out.took)
		out.null, o.err = true, nil
		var zero V
		out.value = zero
	default:
		l.counters.loadErrors.Add(1)
		if errors.Is(o.err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrLoadTimeout) {
			o.err = errors.Join(ErrLoadTimeout, o.err)
		}
	}
	return out, o.err
}

// noRow tells whether a load has said that there is no such row. A panic never says so, whatever it was called with.
func noRow(err error) bool {
	if _, panicked := errors.AsType[*PanicError](err); panicked {
		return false
	}
	return errors.Is(err, ErrNotFound) || errors.Is(err, sql.ErrNoRows)
}

// enter waits until no load of key runs in this process. It matters when Redis is down: a Get and a Refresh, which share no round,
// would both load.
func (l *Loader[K, V]) enter(ctx context.Context, key K) error {
	for {
		l.loadingMu.Lock()
		running, ok := l.loading[key]
		if !ok || mutant.Active == mutant.ProcessGate {
			l.loading[key] = make(chan struct{})
			l.loadingMu.Unlock()
			return nil
		}
		l.loadingMu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

func (l *Loader[K, V]) leave(key K) {
	l.loadingMu.Lock()
	defer l.loadingMu.Unlock()
	if running, ok := l.loading[key]; ok {
		delete(l.loading, key)
		close(running)
	}
}
