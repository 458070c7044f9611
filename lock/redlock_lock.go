package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// redlockLock is a round that has got the lock.
type redlockLock struct{ *round }

func (k redlockLock) Extend(ctx context.Context, ttl time.Duration) error {
	var noes atomic.Int32
	ok, err := k.d.mutex(ttl, nil, func(ctx context.Context, i int) (bool, error) {
		yes, err := k.touch(ctx, i, redlockExtend, ttl.Milliseconds())
		if !yes && err == nil {
			noes.Add(1)
		}
		return yes, err
	}).ExtendContext(ctx)
	return k.verdict(ok, &noes, err)
}

// Release leaves the nodes that have not answered to settle. It asks again only if that was quick:
// replies were lost.
func (k redlockLock) Release(ctx context.Context) error {
	defer k.settle()
	for began := time.Now(); ; {
		err := k.release(ctx)
		if err == nil || errors.Is(err, driver.ErrLost) || time.Since(began) > k.timeout/2 || retry.Sleep(ctx, retryLost) != nil {
			return err
		}
	}
}

const retryLost = 5 * time.Millisecond

func (k redlockLock) release(ctx context.Context) error {
	var noes atomic.Int32
	ok, err := k.d.mutex(k.ttl, nil, func(ctx context.Context, i int) (bool, error) {
		yes, err := k.freeOrLeave(ctx, i)
		if !yes && err == nil {
			noes.Add(1)
		}
		return yes, err
	}).UnlockContext(ctx)
	return k.verdict(ok, &noes, err)
}

// freeOrLeave frees the lock at a node, and waits for it no longer than the time-out.
func (k redlockLock) freeOrLeave(ctx context.Context, i int) (bool, error) {
	b := &k.ballots[i]
	switch {
	case b.freed.Load():
		return true, nil
	case b.nothing():
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	var yes bool
	var err error
	if left := k.d.nodes[i].conn.Await(ctx, func(ctx context.Context) {
		ctx, cancel := detached(ctx, k.timeout)
		defer cancel()
		_, yes, err = k.free(ctx, i)
	}); left != nil {
		return false, left
	}
	return yes, err
}

// verdict: so many nodes may have refused that there is no majority, whatever the others would say.
func (k redlockLock) verdict(ok bool, noes *atomic.Int32, err error) error {
	switch {
	case ok:
		return nil
	case int(noes.Load()) > len(k.ballots)-k.d.quorum:
		return driver.ErrLost
	default:
		return fmt.Errorf("no majority of the Redis servers: %w", err)
	}
}
