package lock

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// Lease is a lock that is held, until it is released or lost. It is safe for concurrent use.
type Lease struct {
	hold   *hold
	ctx    context.Context
	cancel context.CancelCauseFunc
	once   sync.Once
	err    error
}

// Context is the context for the work under the lock. It is made from the context of Acquire.
// Before the lock can pass to another, Context ends with the cause ErrLost (in context.Cause;
// errors.Is), when the lock could not be extended in time, or was found gone; after a Release it
// ends with ErrReleased.
//
// "Before" is by the clock of this process, which must run: a holder that was suspended (by a
// garbage collector, a debugger, a live migration) may act a moment longer than it knows, and a
// write that it has sent may arrive much later. Only a resource that checks the Token, see Guard
// and SetFenced, is safe from that.
func (l *Lease) Context() context.Context { return l.ctx }

// Token is the fencing token: a number greater than that of each holder of this lock before. A
// resource that refuses a smaller token than it has seen is protected from a holder that does not
// know yet that it has lost the lock. Tokens are not consecutive. The leases of one owner have the
// same token.
func (l *Lease) Token() int64 { return l.hold.token }

// Deadline is when the context ends if the lock is not extended until then: the lock's life since
// before the last request that was granted, less a twentieth and 5 ms, for clocks that differ and
// timers that are late. It is never later than Options.MaxHold lets the lock be held. Deadline has
// a monotonic clock reading, and moves on while the lock is extended.
func (l *Lease) Deadline() time.Time {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if last := l.hold.last; !last.IsZero() && last.Before(l.hold.until) {
		return last
	}
	return l.hold.until
}

// Extend makes the lock live for its TTL from now on, as the watchdog does by itself; it is for
// locks with Options.Fixed. Extend never acquires the lock anew: if the lock is gone, the error is
// ErrLost, and the context ends. After any other error it is not known whether the lock was
// extended, and Deadline is what it was.
func (l *Lease) Extend(ctx context.Context) error {
	h := l.hold
	ctx, loan := lent.Whole(ctx)
	defer loan.End()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.running, func() { cancel(ErrReleased) })()
	return failed("extend", h.key, h.extend(ctx))
}

// Release ends the lease and, if it is its owner's last, the lock: only this lock, never another
// holder's. Release needs no context, and works also when the context of Acquire has ended; it
// returns within twice LockerOptions.Timeout. It may be called again, and by several goroutines: it
// counts once, and each call returns the same.
//
// The error is ErrLost if the lock was lost before, so that the work was not protected to its end.
// With any other error the lock is not known to be released: the background tries on to release it
// until its TTL has passed.
func (l *Lease) Release() error {
	l.once.Do(func() {
		l.cancel(ErrReleased)
		l.err = failed("release", l.hold.key, l.hold.leave(l))
	})
	return l.err
}
