package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// splitsTried is how often a caller that does not wait asks anew when nobody has got a majority, as
// long as that does not take longer than a time-out.
const splitsTried = 8

func (d *redlockDriver) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	key := lockKey(d.prefix, q.Key)
	c := &contest{d: d, keys: []string{key, key + ":token"}, ttl: q.TTL, timeout: q.Timeout, token: !q.NoToken}
	w := &redlockWait{d: d, key: key}
	defer w.leave()
	began := time.Now()
	for splits, stale := 0, 0; ; {
		w.forget()
		r := c.newRound()
		token, err := r.run(ctx)
		if err == nil {
			return driver.Grant{Lock: &redlockLock{round: r}, Token: token, Sent: r.sent, TTL: q.TTL}, nil
		}
		took := time.Since(r.sent)
		held, contended := r.contended(err)
		c.giveUp(r)
		switch {
		case ctx.Err() != nil:
			return driver.Grant{}, context.Cause(ctx)
		case !contended && r.stale() && stale < conn.MaxStale:
			stale++
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

// stale reports whether a closed connection has lost the request to a node. The next round goes by
// another.
func (r *round) stale() bool {
	for i := range r.ballots {
		if b := &r.ballots[i]; b.now() && conn.Stale(b.err) {
			return true
		}
	}
	return false
}

// giveUp has nothing left of a round. The next takes over its votes, which the requests to free
// them might else reach later than it.
func (c *contest) giveUp(r *round) {
	r.settle()
	c.given = append(c.given, r.id)
	c.given = c.given[max(0, len(c.given)-keepGiven):]
}

// contended tells whether the lock was not got because of others; and whether one of them has it,
// or is about to: else those who contend have split the votes.
func (r *round) contended(err error) (held, contended bool) {
	var most, node = (*redsync.ErrTaken)(nil), (*redsync.ErrNodeTaken)(nil)
	answered, holders := 0, make(map[string]int)
	for i := range r.ballots {
		b := &r.ballots[i]
		if !b.now() || b.err != nil {
			continue
		}
		answered++
		if b.answer.status == isHeld {
			holders[b.answer.holder]++
			held = held || holders[b.answer.holder] >= r.d.quorum
		}
	}
	return held, answered >= r.d.quorum && (errors.As(err, &most) || errors.As(err, &node))
}

// backoff parts those whose requests have met: it grows with each time, and is random.
func backoff(took time.Duration, splits int) time.Duration {
	scale := min(max(2*took, 2*time.Millisecond), 20*time.Millisecond) << min(splits-1, 4)
	return rand.N(min(scale, 250*time.Millisecond))
}
