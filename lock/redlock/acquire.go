package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// maxSplits is the maximum number of retries of a caller that does not wait, while no contender
// gets a majority. They take at most one timeout together.
const maxSplits = 8

// Acquire runs rounds until one acquires the lock.
func (n *nodes) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	key := redislock.KeyOf(n.prefix, q.Key)
	c := &contest{nodes: n, keys: []string{key, key + ":token"}, ttl: q.TTL, timeout: q.Timeout, token: !q.NoToken}
	w := &waiter{nodes: n, key: key}
	defer w.close()
	began := time.Now()
	for splits, closedConns := 0, 0; ; {
		w.drain()
		r := c.newRound()
		token, err := r.run(ctx)
		if err == nil {
			return driver.Grant{Lock: &held{r}, Token: token, Sent: r.sent, TTL: q.TTL}, nil
		}
		took := time.Since(r.sent)
		held, contended := r.contended(err)
		c.abandon(r)
		switch {
		case ctx.Err() != nil && !contended && w.wakes == nil: // no majority has replied
			return driver.Grant{}, ctx.Err()
		case ctx.Err() != nil:
			return driver.Grant{}, context.Cause(ctx)
		case !contended && r.retryNow() && closedConns < conn.MaxStale:
			closedConns++
			err = nil
		case !contended:
			return driver.Grant{}, fmt.Errorf("no majority of the Redis servers: %w", err)
		case !q.Wait && (held || splits >= maxSplits || time.Since(began) > q.Timeout):
			return driver.Grant{}, driver.ErrHeld
		case held:
			splits = 0
			err = w.wait(ctx, r, took)
		default:
			splits++
			err = retry.Sleep(ctx, backoff(took, splits))
		}
		if err != nil {
			return driver.Grant{}, err
		}
	}
}

// retryNow reports whether the next round may succeed immediately: a closed connection has lost a
// request, or the clock of a node differed from its last reading.
func (r *round) retryNow() bool {
	for _, b := range r.ballots {
		if b.finished() && (conn.Stale(b.err) || errors.Is(b.err, errLate)) {
			return true
		}
	}
	return false
}

// abandon cleans up after a round. The next round takes over its votes, because it may reach a
// node before the request that frees them.
func (c *contest) abandon(r *round) {
	r.cleanUp()
	c.abandoned = append(c.abandoned, r.id)
	c.abandoned = c.abandoned[max(0, len(c.abandoned)-maxAbandoned):]
}

// contended reports whether the round failed because of other contenders. held reports whether
// one of them has a majority; otherwise the votes are split.
func (r *round) contended(err error) (held, contended bool) {
	var most, node = (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	replied, holders := 0, make(map[string]int)
	for _, b := range r.ballots {
		if !b.finished() || b.err != nil {
			continue
		}
		replied++
		if b.reply.Status == redislock.IsHeld {
			holders[b.reply.Holder]++
			held = held || holders[b.reply.Holder] >= r.nodes.quorum
		}
	}
	return held, replied >= r.nodes.quorum && (errors.As(err, &most) || errors.As(err, &node))
}

// backoff returns a random delay that separates competing contenders. It grows with the number of
// consecutive splits.
func backoff(took time.Duration, splits int) time.Duration {
	scale := min(max(2*took, 2*time.Millisecond), 20*time.Millisecond) << min(splits-1, 4)
	return rand.N(min(scale, 250*time.Millisecond))
}

// held is a round that has acquired the lock.
type held struct{ *round }

func (h *held) Extend(ctx context.Context, ttl time.Duration) error {
	return verdict(h.mutex(ttl, func(b *ballot) redis.UniversalClient { return extending{b} }).ExtendContext(ctx))
}

// Release releases the lock on a majority. cleanUp releases it on nodes that have not replied.
func (h *held) Release(ctx context.Context) error {
	defer h.cleanUp()
	return verdict(h.mutex(h.ttl, func(b *ballot) redis.UniversalClient { return b }).UnlockContext(ctx))
}

// verdict returns the error of an extension or a release. The lock is lost if a majority of the
// nodes does not have it.
func verdict(ok bool, err error) error {
	switch most := (*redsync.ErrTaken)(nil); {
	case ok:
		return nil
	case errors.As(err, &most):
		return driver.ErrLost
	default:
		return fmt.Errorf("no majority of the Redis servers: %w", err)
	}
}
