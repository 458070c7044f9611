package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lent"
	"github.com/cacheaside/cacheaside/internal/noanswer"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Locker acquires locks. It is safe for concurrent use. Make one for each service, and close it at
// the end.
//
// Of the goroutines of a process that want the same lock one at a time contends with other
// processes, in the order in which they came. Between processes there is no order, but in
// ZooKeeper.
type Locker struct {
	driver  driver.Driver
	options LockerOptions

	mu         sync.Mutex
	names      map[string]*queue // by key
	closed     bool
	closing    context.Context // ends with Close
	close      context.CancelCauseFunc
	background sync.WaitGroup // extensions, and what is released later
	faulty     sync.Once      // the observer has panicked
}

// New makes a Locker of a driver, for services that have none here; see NewLocal, NewRedis, and the
// packages redlock, mysqllock and zklock. Close closes the driver. nil options are the
// defaults.
func New(d driver.Driver, options *LockerOptions) (*Locker, error) {
	if d == nil {
		return nil, errors.New("lock: the driver is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	l := &Locker{driver: d, options: o, names: make(map[string]*queue)}
	l.closing, l.close = context.WithCancelCause(context.Background())
	return l, nil
}

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

// TryAcquire is Acquire without the wait: if somebody else has the lock, it fails with ErrHeld.
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

// observe tells the observer, if there is one, that an operation begins. A lock is not lost, nor
// its loss kept secret, since that panics.
func (l *Locker) observe(ctx context.Context, op string) (end func(error)) {
	if l.options.Observer == nil {
		return func(error) {}
	}
	end = func(error) {} // if that panics
	defer l.observerPanics()
	_, seen := l.options.Observer.Begin(ctx, op, l.options.Prefix, 1)
	return func(err error) {
		defer l.observerPanics()
		seen(err)
	}
}

// observerPanics is deferred where the observer is called.
func (l *Locker) observerPanics() {
	if p := recover(); p != nil {
		l.faulty.Do(func() {
			slog.Default().Warn("cacheaside/lock: the Observer has panicked; this is logged once", "prefix", l.options.Prefix, "error", fmt.Sprintf("a panic with a %T", p))
		})
	}
}

// request is one call of Acquire.
type request struct {
	key     string
	options Options
	owner   *owner
	wait    bool
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

// unanswered makes sure that the error of a service that has not answered in time is none of the
// caller's own time, unless that is over.
func unanswered(caller context.Context, err error, asked string, began time.Time) error {
	return noanswer.For(caller, err, "the service of the lock", asked, began, nil)
}

// enter counts a call of Acquire, so that Close waits for it.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.background.Add(1)
	}
	return !l.closed
}

// contend gets the lock from the service.
func (l *Locker) contend(ctx, caller context.Context, r request) (*Lease, error) {
	ctx, loan := lent.Whole(ctx) // requests may still be under way when the caller has left
	defer loan.End()
	h := newHold(l, r, caller)
	defer h.ctx.End()
	g, err := l.driver.Acquire(ctx, driver.Request{Key: r.key, TTL: r.options.TTL, Timeout: h.timeout, Wait: r.wait, NoToken: r.options.NoToken, Lost: h.lose})
	if err != nil {
		return nil, err
	}
	if err := h.begin(g); err != nil {
		return nil, err
	}
	lease, older := l.got(h, caller)
	if older != nil {
		older.lose(errTwice)
	}
	if lease != nil {
		return lease, nil
	}
	return nil, cmp.Or(h.finish(ErrReleased), ErrClosed)
}
