package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Acquire waits for the lock of this name until it gets the lock, ctx ends, Options.Wait has passed
// (ErrHeld), or the service fails. nil options are the defaults.
//
// The lock is held until it is released, or lost, or ctx has ended: then it is no longer extended,
// so that a forgotten lock does not stay locked. Lease.Context, under which the work is to be done,
// tells of all three; it is made from ctx. Only answers of the service that come in time count:
// while it cannot be reached there is no lock, and Acquire fails with its error, which is
// context.DeadlineExceeded only if ctx's deadline has passed. Names are any 1 to 1024 bytes.
func (l *Locker) Acquire(ctx context.Context, name string, options *Options) (*Lease, error) {
	return l.acquire(ctx, name, options, true)
}

// Lock is Acquire without a Lease, for cacheaside.LoaderOptions.Locker: wait is Options.Wait, and
// the lock has no token. unlock is Lease.Release.
func (l *Locker) Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error) {
	lease, err := l.Acquire(ctx, name, &Options{Wait: wait, NoToken: true})
	if err != nil {
		return nil, err
	}
	return lease.Release, nil
}

// TryAcquire is Acquire without the wait: if another holder has the lock, or another call in this
// process is asking for it, TryAcquire fails with ErrHeld.
func (l *Locker) TryAcquire(ctx context.Context, name string, options *Options) (*Lease, error) {
	return l.acquire(ctx, name, options, false)
}

// Do acquires the lock with the default options, calls fn, and releases the lock, whatever way fn
// ends. fn's context is Lease.Context. It ends before the lock can pass to another, so fn must heed
// it. fn passes the token to the resource that it changes, which refuses an older token (see Guard
// and SetFenced). The error is fn's, joined with that of the lock: ErrLost if the lock was lost
// meanwhile, even if fn has noticed nothing.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, token int64) error) (err error) {
	lease, err := l.Acquire(ctx, name, nil)
	if err != nil {
		return err
	}
	defer func() {
		if released := lease.Release(); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(lease.Context(), lease.Token())
}

// Close ends all waiting with ErrClosed, releases the locks that are still held (their contexts end
// with ErrReleased), and returns when nothing is left in the background. Close may be called again.
// The clients that the Locker was made with stay open. The errors of Close, joined, are those of
// the locks that were lost, or could not be released.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	var held []*hold
	for _, q := range l.names {
		if q.held != nil {
			held = append(held, q.held)
		}
	}
	l.mu.Unlock()
	l.close(ErrClosed)
	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, h := range held {
		all.Go(func() { errs[i] = failed("release", h.key, h.finish(ErrReleased)) })
	}
	all.Wait()
	l.background.Wait()
	return errors.Join(append(errs, l.driver.Close())...)
}

func (l *Locker) acquire(ctx context.Context, name string, options *Options, wait bool) (*Lease, error) {
	o := options.withDefaults(&l.options)
	key := l.options.Prefix + name
	if err := errors.Join(checkName(name), o.check()); err != nil {
		return nil, failed("acquire", key, err)
	}
	r := request{key: key, options: o, owner: ownerOf(ctx), wait: wait}
	end := l.observe(ctx, OpWait)
	lease, err := l.request(ctx, r)
	end(err)
	return lease, failed("acquire", key, err)
}

// errWaited ends a wait at Options.Wait.
var errWaited = errors.New("Options.Wait has passed")

func (l *Locker) request(caller context.Context, r request) (*Lease, error) {
	if caller.Err() != nil {
		return nil, context.Cause(caller)
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.background.Done()
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	defer context.AfterFunc(l.closing, func() { cancel(ErrClosed) })()
	if r.options.Wait > 0 {
		defer time.AfterFunc(r.options.Wait, func() { cancel(errWaited) }).Stop()
	}
	began := time.Now()
	lease, err := l.queue(ctx, caller, r)
	switch cause := context.Cause(ctx); {
	case err == nil, cause == nil:
		return lease, unanswered(caller, err, "a request for the lock", began)
	case errors.Is(cause, errWaited):
		return nil, fmt.Errorf("%w, and %w", ErrHeld, errWaited)
	default:
		return nil, cause
	}
}
