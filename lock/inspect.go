package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// State describes a lock at the time of Inspect.
type State struct {
	Holders []Holder // none: the lock is free

	// Waiting is the number of callers that wait: those of this process and, in Redis, one for each
	// other process that waits or has waited in the last five seconds. Tables do not show other
	// processes that wait.
	Waiting int
}

// Holder describes a holder of a lock.
type Holder struct {
	Label string        // Options.Label of the holder
	Token int64         // its fencing token
	Since time.Time     // when it has acquired the lock, by the service's clock
	Left  time.Duration // until the lock expires, unless the holder extends it
	Write bool          // it has a ReadWrite for writing
}

// errBroken is the reason of the loss for a holder in the process that called Break.
var errBroken = errors.New("broken by Break")

// Inspect returns who holds a lock. Locks of NewRedis, NewLocal, mysqllock and pglock can be
// inspected; otherwise the error is errors.ErrUnsupported. In Redis it takes two requests, in a
// cluster one more for each node. If the user lacks +pubsub, State.Waiting counts other processes
// as one.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	return l.inspect(ctx, name, driver.Exclusive)
}

// Break releases a lock on behalf of the holder with this token (Holder.Token), for example if the
// holder hangs. It returns ErrReleased, and changes nothing, if this holder does not have the lock
// any more. It supports the same services as Inspect.
//
// The holder loses the lock at its next extension, at most a third of its TTL later, or at once if
// it uses this Locker. Until then it continues, although another holder may already have the lock.
// Only a resource that checks tokens is protected from it: see Guard and SetFenced.
func (l *Locker) Break(ctx context.Context, name string, token int64) error {
	return l.breakHolder(ctx, name, driver.Exclusive, token)
}

// extended returns the driver, or an error if it has only exclusive locks.
func (l *Locker) extended() (driver.Extended, error) {
	d, ok := l.driver.(driver.Extended)
	if !ok {
		return nil, fmt.Errorf("lock: %w by the service of this Locker; NewRedis, NewLocal, mysqllock and pglock "+
			"support it", errors.ErrUnsupported)
	}
	return d, nil
}

func (l *Locker) inspect(ctx context.Context, name string, kind driver.Kind) (s State, err error) {
	err = l.manage(ctx, OpInspect, name, kind, func(ctx context.Context, d driver.Extended, r driver.Request) error {
		found, err := d.Inspect(ctx, r)
		for _, h := range found.Holders {
			s.Holders = append(s.Holders, Holder{Label: h.Label, Token: h.Token, Since: time.UnixMicro(h.Token),
				Left: h.Left, Write: h.Alone && kind == driver.ReadWrite})
		}
		s.Waiting = found.Waiting
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.names[request{key: l.options.Prefix + name, kind: kind}.queue()]; q != nil && err == nil {
		if q.contender != nil { // the service may count it
			s.Waiting = max(s.Waiting, 1)
		}
		s.Waiting += len(q.waiting)
	}
	return s, err
}

func (l *Locker) breakHolder(ctx context.Context, name string, kind driver.Kind, token int64) error {
	return l.manage(ctx, OpBreak, name, kind, func(ctx context.Context, d driver.Extended, r driver.Request) error {
		err := d.Break(ctx, r, token)
		if errors.Is(err, driver.ErrLost) {
			return ErrReleased
		}
		if err != nil {
			return err
		}
		for _, h := range l.holdsOf(r) {
			if h.token == token {
				h.lose(errBroken)
			}
		}
		return nil
	})
}

// holdsOf returns the holds of this process on a lock.
func (l *Locker) holdsOf(r driver.Request) (all []*hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.holds {
		if h.kind == r.Kind && h.key == r.Key {
			all = append(all, h)
		}
	}
	return all
}

// manage calls f with a request about a lock that takes no longer than Options.Timeout.
func (l *Locker) manage(ctx context.Context, op, name string, kind driver.Kind,
	f func(context.Context, driver.Extended, driver.Request) error) error {
	key := l.options.Prefix + name
	d, err := l.extended()
	if err = errors.Join(err, checkName(name)); err != nil {
		return failed(op, key, err)
	}
	r := l.driverRequest(request{key: key, kind: kind, options: AcquireOptions{TTL: l.options.TTL}}, l.options.Timeout,
		func(error) {})
	return failed(op, key, l.bounded(ctx, 0, func(limited context.Context) error {
		limited, cancel := context.WithTimeout(limited, l.options.Timeout)
		defer cancel()
		return f(limited, d, r)
	}))
}
