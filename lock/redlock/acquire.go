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

// splitsTried is how often a caller that does not wait asks again when no contender has got a
// majority, as long as that does not take longer than a time-out.
const splitsTried = 8

// Acquire asks in rounds until one has got the lock.
func (d *nodes) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	key := redislock.KeyOf(d.prefix, q.Key)
	c := &contest{d: d, keys: []string{key, key + ":token"}, ttl: q.TTL, timeout: q.Timeout, token: !q.NoToken}
	w := &waiter{d: d, key: key}
	defer w.leave()
	began := time.Now()
	for splits, lost := 0, 0; ; {
		w.forget()
		r := c.newRound()
		token, err := r.run(ctx)
		if err == nil {
			return driver.Grant{Lock: &held{r}, Token: token, Sent: r.sent, TTL: q.TTL}, nil
		}
		took := time.Since(r.sent)
		held, contended := r.contended(err)
		c.giveUp(r)
		switch {
		case ctx.Err() != nil:
			return driver.Grant{}, context.Cause(ctx)
		case !contended && r.again() && lost < conn.MaxStale:
			lost++
			err = nil
		case !contended:
			return driver.Grant{}, fmt.Errorf("no majority of the Redis servers: %w", err)
		case !q.Wait && (held || splits >= splitsTried || time.Since(began) > q.Timeout):
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

// again reports whether the next round may succeed at once: a closed connection has lost the
// request to a node, or the clock of the node was not what it was taken for.
func (r *round) again() bool {
	for _, b := range r.ballots {
		if b.over() && (conn.Stale(b.err) || errors.Is(b.err, errLate)) {
			return true
		}
	}
	return false
}

// giveUp leaves nothing of a round. The next takes over its votes, because the requests to free
// them might reach a node later than the next round does.
func (c *contest) giveUp(r *round) {
	r.settle()
	c.given = append(c.given, r.id)
	c.given = c.given[max(0, len(c.given)-keepGiven):]
}

// contended reports whether the lock was not got because of other contenders; and whether one of
// them has it, or is about to: otherwise they have split the votes.
func (r *round) contended(err error) (held, contended bool) {
	var most, node = (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	answered, holders := 0, make(map[string]int)
	for _, b := range r.ballots {
		if !b.over() || b.err != nil {
			continue
		}
		answered++
		if b.answer.Status == redislock.IsHeld {
			holders[b.answer.Holder]++
			held = held || holders[b.answer.Holder] >= r.d.quorum
		}
	}
	return held, answered >= r.d.quorum && (errors.As(err, &most) || errors.As(err, &node))
}

// backoff separates contenders whose requests have met: it grows with each time, and is random.
func backoff(took time.Duration, splits int) time.Duration {
	scale := min(max(2*took, 2*time.Millisecond), 20*time.Millisecond) << min(splits-1, 4)
	return rand.N(min(scale, 250*time.Millisecond))
}

// held is a round that has got the lock.
type held struct{ *round }

func (h *held) Extend(ctx context.Context, ttl time.Duration) error {
	return verdict(h.mutex(ttl, func(b *ballot) redis.UniversalClient { return extending{b} }).ExtendContext(ctx))
}

// Release leaves the nodes that have not answered to settle.
func (h *held) Release(ctx context.Context) error {
	defer h.settle()
	return verdict(h.mutex(h.ttl, func(b *ballot) redis.UniversalClient { return b }).UnlockContext(ctx))
}

// verdict returns the error of an extension or a release. The lock is lost if a majority of nodes
// has refused.
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
