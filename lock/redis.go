package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewRedis makes a Locker on one Redis: a *redis.Client, to a single server or by way of sentinels,
// or a *redis.ClusterClient. Redis 7.0 or later, or Valkey. nil options are the defaults. rdb stays
// the caller's, to be closed after the Locker; set its ContextTimeoutEnabled, else each request
// needs a goroutine more. NewRedis does no I/O.
//
// A lock is one key, prefix{name}, and lives by the clock of its server. A request for a lock that
// was given up is void while a key prefix{name}:id exists: for two time-outs and a second. Callers
// that wait are woken by a message on the channel prefix{name} when the lock is released (the
// Locker has one subscription for all), else when its life is over. The user needs +eval +evalsha
// +get +set +time +publish +subscribe +unsubscribe +ping, ~prefix* and &prefix*.
//
// Tokens are greater than the one before by at least one, and at least the server's time in
// microseconds; the key of a free lock stays for a minute to remember the last. So tokens grow also
// where Redis has lost its data, as long as its clock, or that of the replica that was promoted,
// does not go back meanwhile.
//
// The limits of one Redis: a replica that is promoted, or a server that restarts, without the last
// writes has forgotten the lock. Another process gets the lock while the holder still has it for up
// to a third of the TTL, until the watchdog asks. A server that evicts keys may forget locks, too:
// all policies but noeviction may take a lock. The token tells the holders apart. Persistence with
// appendfsync always keeps a lock through a restart; the packages redlock, mysqllock and zklock
// keep it through the loss of a server.
func NewRedis(rdb redis.UniversalClient, options *LockerOptions) (*Locker, error) {
	o := options.withDefaults()
	if rdb == nil {
		return nil, errors.New("lock: the Redis client is nil")
	}
	c, err := conn.New(rdb, o.Timeout)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	d := &redisDriver{conn: c, prefix: o.Prefix, wakes: redislock.NewWakes(rdb, c)}
	l, err := New(d, options)
	if err != nil {
		d.stop()
	}
	return l, err
}

type redisDriver struct {
	conn   *conn.Conn
	prefix string
	clocks [conn.Ranges]redislock.Clock
	wakes  *redislock.Wakes
}

func (d *redisDriver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	a := &asking{d: d, key: redislock.KeyOf(d.prefix, r.Key), ttl: r.TTL, timeout: r.Timeout}
	began := time.Now()
	g, err := d.acquire(ctx, a, r.Wait)
	if err != nil {
		a.settle()
	}
	return g, d.explain(ctx, err, "a request for the lock", a.key, began)
}

// explain says which server has not answered. Whether the caller's own time is over is told by the
// Locker: here ctx may have a time-out of ours.
func (d *redisDriver) explain(ctx context.Context, err error, asked, key string, began time.Time) error {
	return d.conn.Explain(context.WithoutCancel(ctx), err, asked, key, began)
}

func (d *redisDriver) acquire(ctx context.Context, a *asking, wait bool) (driver.Grant, error) {
	var heard *redislock.Wake // nil: not yet needed
	defer func() { heard.Leave() }()
	for {
		if ctx.Err() != nil {
			return driver.Grant{}, context.Cause(ctx)
		}
		g, left, err := a.ask(ctx, wait && d.wakes.Hears(a.key))
		switch {
		case err != nil, g.Lock != nil:
			return g, err
		case !wait:
			return g, driver.ErrHeld
		}
		if heard == nil {
			heard = d.wakes.Watch(a.key)
		}
		// The message can be lost, and a process that has died sends none.
		expiry := time.NewTimer(left + mrand.N(min(left/10, 50*time.Millisecond)+2*time.Millisecond))
		select {
		case <-heard.C:
		case <-expiry.C:
		case <-ctx.Done():
			expiry.Stop()
			return g, context.Cause(ctx)
		}
		expiry.Stop()
	}
}

// asking is one Acquire. A request for a lock is sent once: if it is not known what has become of
// it, the next has another id, and takes over what it may have got.
type asking struct {
	d       *redisDriver
	key     string
	ttl     time.Duration
	timeout time.Duration
	unknown []any // ids of requests of which it is not known whether they were, or will be, carried out
}

// tries is how often a request is sent for one answer: once more if the answer is lost, and where
// the clock of the server is not what it was.
const tries = 3

// ask asks for the lock. If somebody else has the lock, ask returns for how long at most; mark: the
// holder is to tell when it releases the lock.
func (a *asking) ask(ctx context.Context, mark bool) (g driver.Grant, left time.Duration, err error) {
	lost, stale := 0, 0
	for i := 0; i < tries; i++ {
		var bound int64
		if bound, err = a.d.bound(ctx, a.key, a.timeout); err != nil {
			return g, 0, err
		}
		id := rand.Text()
		sent := time.Now()
		args := append([]any{id, a.ttl.Milliseconds(), bound, mark}, a.unknown...)
		limited, cancel := context.WithTimeout(ctx, a.timeout)
		var reply redislock.Reply
		reply, err = a.d.ask(limited, acquireScript, true, []string{a.key, redislock.Void(a.key, id)}, args...)
		cancel()
		switch {
		case err != nil && conn.IsReply(err):
			return g, 0, err
		case err != nil:
			a.unknown = append(a.unknown, id)
			if conn.Stale(err) && stale < conn.MaxStale && ctx.Err() == nil { // a closed connection has lost it
				stale++
				i--
				continue
			}
			if lost++; lost > 1 || ctx.Err() != nil {
				return g, 0, err
			}
			continue
		}
		a.d.clocks[a.d.conn.Range(a.key)].Learn(sent, reply.Now)
		switch reply.Status {
		case redislock.IsGranted:
			return a.grant(id, reply, sent), 0, nil
		case redislock.IsHeld:
			return g, time.Duration(reply.Value) * time.Millisecond, nil
		case redislock.IsLate:
			err = errors.New("the clock of the Redis server jumps, or requests take too long to arrive")
		}
	}
	return g, 0, err
}

func (a *asking) grant(id string, reply redislock.Reply, sent time.Time) driver.Grant {
	ahead := time.Duration(max(0, reply.Value-reply.Now)) * time.Microsecond
	return driver.Grant{Lock: &redisLock{asking: a, id: id, token: reply.Value, keep: remembered + ahead}, Token: reply.Value, Sent: sent, TTL: a.ttl}
}

// redisLock is held under an id.
type redisLock struct {
	*asking
	id    string
	token int64
	keep  time.Duration // for how long the token is remembered after the release
	asked bool          // to be released, without an answer
}

func (r *redisLock) Extend(ctx context.Context, ttl time.Duration) error {
	began := time.Now()
	reply, err := r.d.ask(ctx, extendScript, false, []string{r.key}, r.id, ttl.Milliseconds())
	if err == nil && reply.Status != redislock.IsGranted {
		err = driver.ErrLost
	}
	return r.d.explain(ctx, err, "an extension", r.key, began)
}

// Release may be called again: if it has asked before, a missing lock is no loss, for that request
// has released it. So the client must not ask twice by itself.
func (r *redisLock) Release(ctx context.Context) error {
	token := strconv.FormatInt(r.token, 10)
	began := time.Now()
	reply, err := r.d.ask(ctx, releaseScript, true, []string{r.key}, "L1 "+r.id+" "+token+" ", "L1 - "+token+" 0 0", r.keep.Milliseconds())
	if err != nil {
		r.asked = r.asked || !conn.IsReply(err)
		return r.d.explain(ctx, err, "a release", r.key, began)
	}
	r.settle()
	if reply.Status != redislock.IsGranted && !r.asked {
		return driver.ErrLost
	}
	return nil
}

// settle makes sure, in the background, that requests that may yet be carried out leave nothing
// behind. One reply is enough: it releases what they have got, and voids those that are on their
// way.
func (a *asking) settle() {
	if len(a.unknown) == 0 {
		return
	}
	keys, args := []string{a.key}, append([]any{redislock.VoidFor(a.timeout)}, a.unknown...)
	for _, id := range a.unknown {
		keys = append(keys, redislock.Void(a.key, id.(string)))
	}
	a.d.wakes.Retry(a.ttl+a.timeout, a.timeout, func(ctx context.Context) error {
		_, err := redislock.Ask(ctx, a.d.conn, settleScript, keys, args...)
		return err
	})
}

// ask runs a script; once: the client must not repeat it.
func (d *redisDriver) ask(ctx context.Context, s conn.Script, once bool, keys []string, args ...any) (redislock.Reply, error) {
	cmd, err := redislock.Eval(ctx, d.conn.Send, s, once, keys, args...)
	if err != nil {
		return redislock.Reply{}, err
	}
	return redislock.ReplyOf(cmd)
}

// bound returns the time, by the clock of the server, after which a request sent now is not to be
// carried out.
func (d *redisDriver) bound(ctx context.Context, key string, timeout time.Duration) (int64, error) {
	return d.clocks[d.conn.Range(key)].Bound(timeout, func() (redislock.Reply, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return d.ask(ctx, redislock.Time, false, []string{key})
	})
}

func (d *redisDriver) Close() error {
	d.stop()
	return nil
}

func (d *redisDriver) stop() {
	d.wakes.Close()
	d.conn.Close()
}
