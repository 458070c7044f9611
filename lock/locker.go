package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/noanswer"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Locker acquires locks. It is safe for concurrent use. Create one for each service, and close it
// when it is no longer needed.
//
// In each process, one goroutine at a time competes with other processes for a lock, in order of
// arrival. Between processes there is no order, except in ZooKeeper.
type Locker struct {
	driver  driver.Driver
	options Options

	mu          sync.Mutex
	names       map[string]*queue  // by request.queue
	holds       map[*hold]struct{} // that have begun, and have not ended
	closed      bool
	closing     context.Context // ends when Close is called
	close       context.CancelCauseFunc
	background  sync.WaitGroup // calls, extensions and later releases
	panicLogged sync.Once      // logs the first panic of the observer
}

// New returns a Locker that uses the given driver. It is for services that this module does not
// support; see NewLocal, NewRedis, and the packages redlock, mysqllock, pglock and zklock. Close
// closes the driver. A nil options means the defaults. Package locktest tests drivers.
func New(d driver.Driver, options *Options) (*Locker, error) {
	if d == nil {
		return nil, errors.New("lock: the driver is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, wording.Errorf("lock: %w", err)
	}
	l := &Locker{driver: d, options: o, names: make(map[string]*queue),
		holds: make(map[*hold]struct{})}
	l.closing, l.close = context.WithCancelCause(context.Background())
	return l, nil
}

// observe notifies the observer, if there is one, that an operation begins, and returns the
// function that notifies it of the end. A panic of the observer does not affect the lock.
func (l *Locker) observe(ctx context.Context, op string) (end func(error)) {
	if l.options.Observer == nil {
		return func(error) {}
	}
	end = func(error) {} // result if Begin panics
	defer l.observerPanics()
	_, seen := l.options.Observer.Begin(ctx, op, l.options.Prefix, 1)
	return func(err error) {
		defer l.observerPanics()
		seen(err)
	}
}

// observerPanics recovers and logs a panic of the observer. It is deferred around each call.
func (l *Locker) observerPanics() {
	if p := recover(); p != nil {
		panicked := limitedlog.Panicked("the Observer", p)
		l.panicLogged.Do(func() {
			limitedlog.Guarded(l.options.Logger).Warn(
				"cacheaside/lock: the Observer has panicked; later panics are not logged",
				"prefix", l.options.Prefix, "error", panicked)
		})
	}
}

// request is the arguments of one call of Acquire.
type request struct {
	key     string
	options AcquireOptions
	owner   *owner
	wait    bool
	kind    driver.Kind
	limit   int // driver.Request.Limit
}

// queue returns the name of the lock among the locks of all kinds. A key contains no brace before
// the name.
func (r request) queue() string {
	if r.kind == driver.Exclusive {
		return r.key
	}
	return "{" + string(r.kind) + "}" + r.key
}

// driverRequest returns the request for the driver. lost may be nil.
func (l *Locker) driverRequest(r request, timeout time.Duration, lost func(error)) driver.Request {
	return driver.Request{Key: r.key, TTL: r.options.TTL, Timeout: timeout, Wait: r.wait, NoToken: r.options.NoToken,
		Kind: r.kind, Limit: r.limit, Label: l.options.Label, Lost: lost}
}

// serviceError returns the error of a request to the service: ErrNoReply if the service has not
// replied. It matches context.DeadlineExceeded only if the caller's own deadline has passed.
func serviceError(caller context.Context, err error, asked string, began time.Time) error {
	err = noanswer.Wrap(caller, err, "the service of the lock", asked, began, nil)
	if noanswer.Is(err) {
		err = fmt.Errorf("%w: %w", ErrNoReply, err)
	}
	return err
}

// enter registers a call that Close waits for. It returns false if the Locker is closed.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.background.Add(1)
	}
	return !l.closed
}
