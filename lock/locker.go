package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

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
