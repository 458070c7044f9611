package lock

import (
	"cmp"
	"context"
	"errors"
	mrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// NewRedis returns a Locker on one Redis deployment: a *redis.Client to a single server or
// through sentinels, or a *redis.ClusterClient. It needs Redis 7.0 or later, or Valkey. A nil
// options means the defaults. The caller closes rdb after the Locker. Set ContextTimeoutEnabled
// in rdb's options, otherwise each request needs an additional goroutine. NewRedis does no I/O.
//
// A lock is one key, prefix{name}, and expires by the clock of its server. While a key
// prefix{name}:id exists, the server does not carry out the request for the lock with that id.
// The Locker sets it for abandoned requests, for three timeouts and a second, except while a
// cluster moves the slot of the lock. A release publishes a message on the channel prefix{name},
// which wakes waiting callers. Without a message they retry when the lock expires. The Locker has
// one subscription for each 3,000 locks that are waited for. The Redis user needs
// +eval +evalsha +get +set +time +publish +subscribe +unsubscribe +ping, ~prefix* and &prefix*.
//
// A token is greater than the previous one, and at least the server's time in microseconds. The
// key of a free lock stays for a minute to remember the last token. So tokens increase even if
// Redis loses its data, as long as its clock, or that of a promoted replica, is not set back at
// the same time.
//
// A single Redis has limits. A promoted replica, or a restarted server, that lacks the last
// writes has lost the lock. Another process can then acquire it while the first holder still
// believes that it holds it, for up to a third of the TTL, until the watchdog's next request. A
// server that evicts keys may lose locks, too: all eviction policies except noeviction may evict
// a lock. The Locker reads the policy of the server of its first lock, and logs one warning if it
// evicts keys. This needs +info, which is optional. The token distinguishes the holders.
// Persistence with appendfsync always preserves locks across restarts. The packages redlock,
// mysqllock, pglock and zklock preserve them across the loss of a server.
func NewRedis(rdb redis.UniversalClient, options *Options) (*Locker, error) {
	d, err := newRedisDriver(rdb, options)
	if err != nil {
		return nil, err
	}
	l, err := New(d, options)
	if err != nil {
		d.Close() //nolint:errcheck // always nil
	}
	return l, err
}

func newRedisDriver(rdb redis.UniversalClient, options *Options) (driver.Driver, error) {
	o := options.withDefaults()
	if rdb == nil {
		return nil, errors.New("lock: the Redis client is nil")
	}
	c, err := conn.New(rdb, o.Timeout)
	if err != nil {
		return nil, wording.Errorf("lock: %w", err)
	}
	d := &redisDriver{
		conn: c, prefix: o.Prefix, wakes: redislock.NewWakes(rdb, c), evictions: evictionCheck{log: o.Logger},
	}
	if c.Cluster() {
		return d, nil
	}
	return &singleRedis{d}, nil
}

// redisDriver is the driver of NewRedis.
type redisDriver struct {
	conn      *conn.Conn
	prefix    string
	clocks    [conn.Ranges]redislock.Clock
	wakes     *redislock.Wakes
	evictions evictionCheck
}

func (r *redisDriver) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	a := r.attempt(req)
	began := time.Now()
	g, err := r.acquire(ctx, a, req.Wait)
	if err != nil {
		a.cleanUp()
	}
	return g, r.explain(ctx, err, "a request for the lock", a.key, began)
}

// explain adds to err which server did not reply. The Locker decides whether the caller's
// deadline has passed, because ctx may have a timeout of this package.
func (r *redisDriver) explain(ctx context.Context, err error, asked, key string, began time.Time) error {
	return r.conn.Explain(context.WithoutCancel(ctx), err, asked, key, began)
}

func (r *redisDriver) acquire(ctx context.Context, a *acquisition, wait bool) (driver.Grant, error) {
	var wake *redislock.Wake // nil until the first wait
	waitsFor := a.key
	defer func() { wake.Leave() }()
	for {
		if ctx.Err() != nil {
			return driver.Grant{}, context.Cause(ctx)
		}
		g, remaining, err := a.request(ctx, wait && r.wakes.Subscribed(waitsFor))
		switch {
		case err != nil && wake != nil && ctx.Err() != nil: // another holder had the lock before
			return g, context.Cause(ctx)
		case err != nil, g.Lock != nil:
			return g, err
		case !wait:
			return g, driver.ErrHeld
		}
		if waitsFor != a.held { // ask again, because the last request may not have marked this lock
			wake.Leave()
			wake, waitsFor = r.wakes.Watch(a.held), a.held
			continue
		}
		if wake == nil {
			wake = r.wakes.Watch(waitsFor)
		}
		if a.intent != nil {
			remaining = min(remaining, a.ttl/3) // to renew it
		}
		// The message may be lost, and a process that has died sends none.
		expiry := time.NewTimer(remaining + mrand.N(min(remaining/10, 50*time.Millisecond)+2*time.Millisecond))
		select {
		case <-wake.C:
		case <-expiry.C:
		case <-ctx.Done():
			expiry.Stop()
			return g, context.Cause(ctx)
		}
		expiry.Stop()
	}
}

// acquisition is the state of one Acquire. A request for the lock is never repeated with the same
// id. If its outcome is unknown, the next request has a new id and takes over a lock that the
// earlier one may have acquired.
type acquisition struct {
	driver     *redisDriver
	scripts    *redisScripts
	key        string
	label      string
	ttl        time.Duration
	timeout    time.Duration
	args       []any    // arguments of the script for this kind of lock
	others     []string // keys of further locks, in the order of their names: see AcquireTogether
	held       string   // key of a lock that another holder has
	intends    bool     // a request that is refused marks the lock
	intent     any      // id of the request that has marked the lock for a waiting writer; nil: none
	unresolved []any    // ids of requests whose outcome is unknown
	bound      int64    // the latest bound of these
	slotMoves  bool     // a cluster moves the slot of the lock: use no Voids
}

func (r *redisDriver) attempt(req driver.Request) *acquisition {
	a := &acquisition{driver: r, scripts: &exclusiveScripts, key: redislock.KeyOf(r.prefix, req.Key), label: req.Label,
		ttl: req.TTL, timeout: req.Timeout}
	if req.Kind != driver.Exclusive {
		a.scripts, a.key = &sharedScripts, redislock.Shared(a.key, string(req.Kind))
		a.args, a.intends = []any{req.Limit, req.Wait}, req.Limit == 0 && req.Wait
	}
	return a
}

// mayHold returns the ids of requests that may have an entry, or get one.
func (a *acquisition) mayHold() []any {
	if a.intent == nil {
		return a.unresolved
	}
	return append(slices.Clip(a.unresolved), a.intent)
}

// keys returns the keys of a script about the requests with these ids: the lock and their Voids.
// While a cluster moves the slot, it refuses a script with several keys if one of them is absent.
// The script then gets only the lock.
func (a *acquisition) keys(ids ...any) []string {
	keys := append([]string{a.key}, a.others...)
	if a.slotMoves {
		return keys
	}
	for _, id := range ids {
		for _, key := range keys[:1+len(a.others)] {
			keys = append(keys, redislock.Void(key, id.(string)))
		}
	}
	return keys
}

// maxSends is the maximum number of requests for one reply: it allows for a lost reply and a
// changed server clock. Requests that a closed connection has lost do not count.
const maxSends = 3

// request requests the lock. If another holder has it, request returns the remaining time until
// it expires. notify asks the holder to announce the release.
func (a *acquisition) request(ctx context.Context, notify bool) (g driver.Grant, remaining time.Duration, err error) {
	noReply, closedConns := 0, 0
	for i := 0; i < maxSends; i++ {
		var bound int64
		if bound, err = a.driver.bound(ctx, a.key, a.timeout); err != nil {
			return g, 0, err
		}
		id := holders.NewID(a.label)
		sent := time.Now()
		args := slices.Concat([]any{id, a.ttl.Milliseconds(), bound, notify}, a.args, a.mayHold())
		limited, cancel := context.WithTimeout(ctx, a.timeout)
		var reply redislock.Reply
		reply, err = a.driver.run(limited, a.scripts.acquire, true, a.keys(id), args...)
		cancel()
		switch {
		case redis.IsTryAgainError(err) && !a.slotMoves: // not carried out
			a.slotMoves = true
			i--
			continue
		case err != nil && conn.IsReply(err):
			return g, 0, err
		case err != nil:
			a.unresolved, a.bound = append(a.unresolved, id), max(a.bound, bound)
			if conn.Stale(err) && closedConns < conn.MaxStale && ctx.Err() == nil { // lost by a closed connection
				closedConns++
				i--
				continue
			}
			if noReply++; noReply > 1 || ctx.Err() != nil {
				return g, 0, err
			}
			continue
		}
		a.driver.clocks[a.driver.conn.Range(a.key)].Learn(a.timeout, sent, reply.Now)
		switch reply.Status {
		case redislock.IsGranted:
			a.driver.evictions.start(a.driver.conn, a.key, a.timeout)
			return a.grant(id, reply, sent), 0, nil
		case redislock.IsHeld:
			a.held = cmp.Or(reply.Holder, a.key)
			if a.intends {
				a.intent = id
			}
			return g, time.Duration(reply.Value) * time.Millisecond, nil
		case redislock.IsLate:
			err = errors.New("the clock of the Redis server jumps, or requests take too long to arrive")
		}
	}
	return g, 0, err
}

func (a *acquisition) grant(id string, reply redislock.Reply, sent time.Time) driver.Grant {
	ahead := time.Duration(max(0, reply.Value-reply.Now)) * time.Microsecond
	return driver.Grant{Lock: &redisLock{acquisition: a, id: id, token: reply.Value, tokenTTL: tokenMargin + ahead},
		Token: reply.Value, Sent: sent, TTL: a.ttl}
}

// redisLock is a lock that the request with this id has acquired.
type redisLock struct {
	*acquisition
	id          string
	token       int64
	tokenTTL    time.Duration // how long the token is remembered after the release
	releaseSent bool          // a Release was sent, and its reply was lost
}

func (r *redisLock) Extend(ctx context.Context, ttl time.Duration) error {
	began := time.Now()
	reply, err := r.driver.run(ctx, r.scripts.extend, false, []string{r.key}, r.id, ttl.Milliseconds())
	if err == nil && reply.Status != redislock.IsGranted {
		err = driver.ErrLost
	}
	return r.driver.explain(ctx, err, "an extension", r.key, began)
}

// Release may be called again after an error. If the reply to an earlier call was lost, a missing
// lock is not a loss, because that call has released it. The client must therefore not repeat the
// command itself.
func (r *redisLock) Release(ctx context.Context) error {
	token := strconv.FormatInt(r.token, 10)
	began := time.Now()
	args := []any{"L1 " + r.id + " " + token + " ", "L1 - " + token + " 0 0", r.tokenTTL.Milliseconds()}
	if r.scripts == &sharedScripts {
		args = []any{r.id}
	}
	reply, err := r.driver.run(ctx, r.scripts.release, true, []string{r.key}, args...)
	if err != nil {
		r.releaseSent = r.releaseSent || !conn.IsReply(err)
		return r.driver.explain(ctx, err, "a release", r.key, began)
	}
	r.cleanUp()
	if reply.Status != redislock.IsGranted && !r.releaseSent {
		return driver.ErrLost
	}
	return nil
}

// cleanUp cleans up, in the background, after requests whose outcome is unknown. One reply is
// enough: the script releases what they have acquired and voids those that have not arrived. While
// a cluster moves the slot, nothing can be voided, and cleanUp continues until the bounds of the
// requests have passed.
func (a *acquisition) cleanUp() {
	ids := a.mayHold()
	if len(ids) == 0 {
		return
	}
	keys, args := a.keys(ids...), append([]any{redislock.VoidFor(a.timeout).Milliseconds()}, ids...)
	run := func(ctx context.Context) (redislock.Reply, error) {
		return redislock.Run(ctx, a.driver.conn, a.scripts.cleanUp, keys, args...)
	}
	a.driver.wakes.Retry(a.ttl+a.timeout, a.timeout, func(ctx context.Context) error {
		reply, err := run(ctx)
		if redis.IsTryAgainError(err) {
			keys = keys[:1]
			reply, err = run(ctx)
		}
		if err == nil && len(keys) == 1 {
			err = a.repeatUntilBound(ctx, reply.Now, run)
		}
		return err
	})
}

// repeatUntilBound calls run until the server's time is past the bounds of the unresolved requests.
// now is the server's time at the last reply. repeatUntilBound continues after Close.
func (a *acquisition) repeatUntilBound(
	ctx context.Context, now int64, run func(ctx context.Context) (redislock.Reply, error),
) error {
	ctx = context.WithoutCancel(ctx)
	end := time.Now().Add(redislock.VoidFor(a.timeout)) // if the server's clock is set back
	for delay := 5 * time.Millisecond; now <= a.bound && time.Now().Before(end); delay = min(2*delay, time.Second) {
		time.Sleep(min(delay, time.Duration(a.bound-now+1)*time.Microsecond))
		limited, cancel := context.WithTimeout(ctx, a.timeout)
		reply, err := run(limited)
		cancel()
		if err != nil {
			return err
		}
		now = reply.Now
	}
	return nil
}

// run runs a script. If once is set, the client must not repeat the command.
func (r *redisDriver) run(
	ctx context.Context, s conn.Script, once bool, keys []string, args ...any,
) (redislock.Reply, error) {
	cmd, err := redislock.Eval(ctx, r.conn.Send, s, once, keys, args...)
	if err != nil {
		return redislock.Reply{}, err
	}
	return redislock.ReplyOf(cmd)
}

// bound returns the time, by the server's clock, after which the server must not carry out a
// request that is sent now.
func (r *redisDriver) bound(ctx context.Context, key string, timeout time.Duration) (int64, error) {
	return r.clocks[r.conn.Range(key)].Bound(timeout, func() (redislock.Reply, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return r.run(ctx, redislock.Time, false, []string{key})
	})
}

func (r *redisDriver) Close() error {
	r.stop()
	return nil
}

func (r *redisDriver) stop() {
	r.wakes.Close()
	r.conn.Close()
}
