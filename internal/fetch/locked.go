package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Locker is a lock service: LoaderOptions.Locker. A *lock.Locker of package lock is one. Its method
// is called by many goroutines at once.
type Locker interface {
	// Lock waits for the lock of this name until it has it, ctx ends, wait has passed, or the
	// service fails. It keeps the lock until unlock is called, which is called once, also when ctx
	// has ended. The error of unlock says that the lock is not known to have been kept until then,
	// or to be free now. A panic in either is taken for an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// callAndStore loads the rows of rounds that have entered the source, under the loader's lock
// if it has one, and stores them. loaded is called in between, waiting when the load begins to wait
// for others.
func (b *batch) callAndStore(rounds []*Round, loaded, waiting func()) {
	if b.l.Locker == nil {
		rows := b.loadAll(rounds, waiting)
		loaded()
		b.store(rounds, rows)
		return
	}
	left := false
	defer func() {
		if !left {
			b.l.Source.Leave(textsOf(rounds))
		}
	}()
	unlock, err := b.lock(rounds[0])
	if unlock != nil {
		defer b.unlock(unlock)
	}
	switch {
	case b.ctx.Err() != nil: // the callers have left
	case err != nil && b.l.MustLock:
		loaded()
		b.store(rounds, source.NotMade(len(rounds), fmt.Errorf("%w: its lock: %w", fault.Unavailable, err)))
	case b.stillToLoad(rounds):
		left = true
		rows := b.loadAll(rounds, waiting)
		loaded()
		b.store(rounds, rows)
	}
}

// lock takes the loader's lock of a row. If it cannot be had the load is made without it, as a
// rule: the lease is what keeps the promises.
func (b *batch) lock(r *Round) (unlock func() error, err error) {
	defer func() {
		if p := recover(); p != nil {
			unlock, err = nil, b.l.cache.Caught(p)
		}
		if err != nil && b.ctx.Err() == nil {
			b.l.Counters.Unlocked.Add(1)
		}
	}()
	name, _ := b.l.Keys.Name(r.text)
	unlock, err = b.l.Locker.Lock(b.ctx, name, b.l.cache.QueueTimeout)
	if unlock == nil && err == nil {
		err = errors.New("the Locker has returned neither a lock nor an error")
	}
	return unlock, err
}

func (b *batch) unlock(unlock func() error) {
	defer func() {
		if p := recover(); p != nil {
			b.l.Counters.Unlocked.Add(1)
		}
	}()
	if err := unlock(); err != nil {
		b.l.Counters.Unlocked.Add(1)
	}
}

// stillToLoad looks once more at what a key holds, after its lock was waited for: its lease may
// have been ended by an invalidation meanwhile, and then another may have loaded it.
func (b *batch) stillToLoad(rounds []*Round) bool {
	if r := rounds[0]; r.withoutLease || b.refresh {
		return true
	}
	b.l.cache.Store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, state *lease.State, err error) {
		if err == nil { // else it is not known, and the fill will tell
			b.settle(rounds[i], state, nil)
		}
	})
	return len(at(rounds, toLoad)) == len(rounds)
}
