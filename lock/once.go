package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/wording"
)

const maxPeriod = 400 * 24 * time.Hour

// Once runs fn, in one process, at most once in each period. It acquires the lock with this name
// and calls fn with the lease's context and token, like Do. If fn returns nil, the lock is not
// released: it stays locked until period has passed since it was acquired. So Once returns ErrHeld,
// at once and without calling fn, while another process runs it and after it has succeeded. Inspect
// shows which process has run it, and when.
//
// If fn fails or panics, the lock is released, and the next call runs fn again. If the process dies
// half-way, the lock expires after Options.TTL, and the next call runs fn again, from its start.
// The same is true if the lock is lost while fn runs (ErrLost), or if its success cannot be
// recorded (ErrNoReply), although fn has done its work. So fn runs at least once, and usually
// exactly once. To make its effects happen exactly once, insert a row with a unique name of the
// run, such as "report 2026-11-29", in the transaction that has the effects: see
// docs/guides/locks.md.
//
// A period that does not begin at a fixed time of the day must be shorter than the interval of the
// calls, such as 23 hours for a job that is started every night. Or give each run a name of its
// own, such as "report 2026-11-29", and a long period. A period is from the TTL of the Locker to
// 400 days.
//
// Once supports the services of Inspect; otherwise the error is errors.ErrUnsupported. The name
// must not be used for other locks. In tables the run is remembered in the row of the lock; in
// Redis in its key, which is lost if Redis loses its data. WithOwner has no effect.
func (l *Locker) Once(
	ctx context.Context, name string, period time.Duration, fn func(ctx context.Context, token int64) error,
) (err error) {
	_, unsupported := l.extended()
	err = errors.Join(unsupported, wording.Range("period", period, l.options.TTL, maxPeriod))
	if err != nil {
		return failed(OpAcquire, l.options.Prefix+name, err)
	}
	began := time.Now()
	lease, err := l.TryAcquire(context.WithValue(ctx, ownerKey{}, (*owner)(nil)), name, nil)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			err = errors.Join(err, lease.Release())
		}
	}()
	if err := fn(lease.Context(), lease.Token()); err != nil {
		return err
	}
	if time.Since(began) > period { // there is nothing left of it to keep the lock for
		return nil
	}
	if err := lease.hold.keep(began.Add(period)); err != nil {
		return failed(OpExtend, lease.hold.key, fmt.Errorf("the run is not recorded: %w", err))
	}
	done = true
	return nil
}

// keep extends the lock until the given time, ends its leases, and does not release it.
func (h *hold) keep(until time.Time) error {
	delay := firstRetryDelay
	began := time.Now()
	err := h.extendHeld(h.held, time.Until(until))
	for i := 0; i < releaseRetries && err != nil && h.endCause() == nil; i++ {
		retry.Sleep(h.held, delay) //nolint:errcheck // the next request fails, too
		err = h.extendHeld(h.held, time.Until(until))
		delay *= 2
	}
	if err != nil {
		return serviceError(h.held, err, "an extension", began)
	}
	h.once.Do(func() { // so that it is not released
		h.mu.Lock()
		leases := h.end(ErrReleased)
		h.mu.Unlock()
		for _, s := range leases {
			s.cancel(ErrReleased)
		}
		h.l.forget(h)
	})
	return lossOnly(h.endCause())
}
