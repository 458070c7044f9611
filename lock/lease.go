package lock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// Lease is a lock that the caller holds until it is released or lost. It is safe for concurrent
// use.
type Lease struct {
	hold   *hold
	ctx    context.Context
	cancel context.CancelCauseFunc
	once   sync.Once
	err    error
}

// Context returns the context for the work under the lock, derived from the context of Acquire.
// It ends with the cause ErrLost (context.Cause with errors.Is) before another holder can get the
// lock: when the lock could not be extended in time, or the service no longer has it. After
// Release it ends with ErrReleased.
//
// This relies on the clock of this process. A holder that was suspended (by a garbage collector,
// a debugger or a live migration) may act a moment longer than it should, and a write that it has
// sent may arrive much later. Only a resource that checks the Token is safe from that; see Guard
// and SetFenced.
func (l *Lease) Context() context.Context { return l.ctx }

// Token returns the fencing token, a number greater than those of all earlier holders of this lock.
// A resource that rejects tokens smaller than the greatest one it has seen is protected from a
// holder that does not know yet that it has lost the lock. Tokens are not consecutive. All leases
// of one owner have the same token. It is 0 if the lock was acquired with AcquireOptions.NoToken
// and the service supports that.
func (l *Lease) Token() int64 { return l.hold.token }

// Deadline returns when the context ends if the lock is not extended before. That is the TTL
// after the last successful request was sent, minus a twentieth of the TTL and 5 ms for different
// clock rates and late timers. It is never later than AcquireOptions.MaxHold allows. Deadline has a
// monotonic clock reading and moves on when the lock is extended.
func (l *Lease) Deadline() time.Time {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	if last := l.hold.maxUntil; !last.IsZero() && last.Before(l.hold.until) {
		return last
	}
	return l.hold.until
}

// Extend extends the lock by its TTL from now on, as the watchdog does automatically. It is meant
// for locks with AcquireOptions.Fixed. Extend never reacquires the lock: if the lock is lost, it
// returns ErrLost and the context ends. After any other error the lock may or may not have been
// extended, and Deadline is unchanged.
func (l *Lease) Extend(ctx context.Context) error {
	h := l.hold
	ctx, loan := lent.Whole(ctx)
	defer loan.End()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.held, func() { cancel(ErrReleased) })()
	return failed(OpExtend, h.key, h.extend(ctx))
}

// Do calls fn with the lease's context and token, and releases the lease, even if fn panics. It
// returns the error of fn, joined with that of Release. See Locker.Do.
func (l *Lease) Do(fn func(ctx context.Context, token int64) error) (err error) {
	defer func() {
		if released := l.Release(); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(l.ctx, l.Token())
}

// Release ends the lease. If it is the owner's last lease, Release also releases the lock, and
// never that of another holder. Release needs no context, works after the context of Acquire has
// ended, and returns within twice Options.Timeout. It may be called several times, also
// concurrently. Only the first call has an effect, and all calls return the same error.
//
// The error is ErrLost if the lock was lost before, so the work was not protected to its end.
// After any other error the release is not confirmed, and the Locker retries it in the background
// until the TTL has passed.
func (l *Lease) Release() error {
	l.once.Do(func() {
		l.cancel(ErrReleased)
		l.err = failed(OpRelease, l.hold.key, l.hold.closeLease(l))
	})
	return l.err
}
