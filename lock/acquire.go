package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Acquire acquires the lock with the given name. It waits until it gets the lock, ctx ends,
// AcquireOptions.Wait has passed (ErrHeld), or the service fails. With AcquireOptions.Try it does
// not wait. A name is any 1 to 1024 bytes. A nil options means the defaults.
//
// The lock is held until it is released, it is lost, or ctx ends. When ctx ends, the lock is no
// longer extended and expires, so a forgotten lock does not stay locked. The caller does its work
// under Lease.Context, which is derived from ctx and ends in all three cases.
//
// Acquire never returns a lock that the service did not grant in time. If the service does not
// reply, Acquire returns ErrNoReply, which is context.DeadlineExceeded only if the deadline of ctx
// has passed.
func (l *Locker) Acquire(ctx context.Context, name string, options *AcquireOptions) (*Lease, error) {
	return l.acquire(ctx, name, options, request{})
}

// Lock acquires a lock without a token, for cacheaside.LoaderOptions.Locker. wait is
// AcquireOptions.Wait, and unlock is Lease.Release.
func (l *Locker) Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error) {
	lease, err := l.Acquire(ctx, name, &AcquireOptions{Wait: wait, NoToken: true})
	if err != nil {
		return nil, err
	}
	return lease.Release, nil
}

// TryAcquire is Acquire with AcquireOptions.Try: it acquires the lock without waiting. It returns
// ErrHeld if another holder has the lock, or if another call in this process is requesting it. It
// may also return ErrHeld although the lock is free, shortly after a call in any process was
// cancelled or has failed: until the request of that call is cleaned up. With zklock, a call that
// has returned ErrHeld counts, too, until its node is deleted.
func (l *Locker) TryAcquire(ctx context.Context, name string, options *AcquireOptions) (*Lease, error) {
	return l.acquire(ctx, name, tryOnce(options), request{})
}

// tryOnce returns the options with AcquireOptions.Try.
func tryOnce(options *AcquireOptions) *AcquireOptions {
	var o AcquireOptions
	if options != nil {
		o = *options
	}
	o.Try = true
	return &o
}

// Do acquires the lock like Acquire, calls fn, and releases the lock, even if fn panics. The
// context of fn is Lease.Context. It ends before another holder can get the lock, so fn must return
// when it ends. fn passes the token to the resource that it changes, which rejects older tokens
// (see Guard and SetFenced). A nil options means the defaults; AcquireOptions.Wait and Try limit
// the waiting.
//
// Do returns the error of Acquire, such as ErrHeld or ErrNoReply, and does not call fn then.
// Otherwise it returns the error of fn, joined with that of the lock. It includes ErrLost if the
// lock was lost while fn ran, even if fn returned nil.
func (l *Locker) Do(
	ctx context.Context, name string, options *AcquireOptions, fn func(ctx context.Context, token int64) error,
) error {
	lease, err := l.Acquire(ctx, name, options)
	if err != nil {
		return err
	}
	return lease.Do(fn)
}

// Close makes waiting calls return ErrClosed, releases the locks that are still held, and waits
// for all background work. The contexts of those locks end with ErrReleased. Close does not close
// the clients that the Locker was created with. It may be called more than once. It returns the
// joined errors of the locks that were lost or could not be released.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	held := slices.Collect(maps.Keys(l.holds))
	l.mu.Unlock()
	l.close(ErrClosed)
	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, h := range held {
		all.Go(func() { errs[i] = failed(OpRelease, h.key, h.finish(ErrReleased)) })
	}
	all.Wait()
	l.background.Wait()
	return errors.Join(append(errs, l.driver.Close())...)
}

// acquire acquires the lock that r describes. It sets the other fields of r.
func (l *Locker) acquire(ctx context.Context, name string, options *AcquireOptions, r request) (*Lease, error) {
	o := options.withDefaults(&l.options)
	key := l.options.Prefix + name
	if err := errors.Join(checkName(name), o.check()); err != nil {
		return nil, failed(OpAcquire, key, err)
	}
	r.key, r.options, r.owner, r.wait = key, o, ownerOf(ctx), !o.Try
	end := l.observe(ctx, OpWait)
	var lease *Lease
	err := l.bounded(ctx, o.Wait, func(limited context.Context) (err error) {
		lease, err = l.acquireInTurn(limited, ctx, r)
		return err
	})
	end(err)
	return lease, failed(OpAcquire, key, err)
}

// errWaitElapsed is the cause that ends a wait when AcquireOptions.Wait has passed.
var errWaitElapsed = errors.New("AcquireOptions.Wait has passed")

// bounded calls request with a context that also ends when the Locker is closed or, unless it is 0,
// after wait.
func (l *Locker) bounded(caller context.Context, wait time.Duration, request func(context.Context) error) error {
	if caller.Err() != nil {
		return context.Cause(caller)
	}
	if !l.enter() {
		return ErrClosed
	}
	defer l.background.Done()
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	defer context.AfterFunc(l.closing, func() { cancel(ErrClosed) })()
	if wait > 0 {
		defer time.AfterFunc(wait, func() { cancel(errWaitElapsed) }).Stop()
	}
	began := time.Now()
	err := request(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil, cause == nil:
		return serviceError(caller, err, "a request for the lock", began)
	case errors.Is(cause, errWaitElapsed) && !errors.Is(err, errWaitElapsed) && !errors.Is(err, ErrHeld):
		return fmt.Errorf("%w, and %w", ErrNoReply, errWaitElapsed)
	case errors.Is(cause, errWaitElapsed):
		return fmt.Errorf("%w, and %w", ErrHeld, errWaitElapsed)
	default:
		return cause
	}
}
