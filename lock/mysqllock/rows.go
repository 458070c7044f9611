package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// rows is the driver of New.
type rows struct {
	db    *sql.DB
	table string // quoted name
	poll  time.Duration

	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	cleanups sync.WaitGroup
}

func (r *rows) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	a := &acquisition{rows: r, key: req.Key, ttl: req.TTL, timeout: req.Timeout}
	g, err := r.acquire(ctx, a, req.Wait)
	if err != nil {
		a.cleanUp()
	}
	return g, explain(r.table, err)
}

const (
	firstDelay = 2 * time.Millisecond
	maxRaces   = 3 // maximum number of tries, without waiting, for a lock that was free but was not acquired
)

func (r *rows) acquire(ctx context.Context, a *acquisition, wait bool) (driver.Grant, error) {
	delay, races := min(firstDelay, r.poll), 0
	for {
		g, remaining, err := a.request(ctx)
		switch {
		case err != nil, g.Lock != nil:
			return g, err
		case remaining <= 0: // another process was faster, or the request was late
			races++
		}
		if !wait && (remaining > 0 || races == maxRaces) {
			return g, driver.ErrHeld
		}
		sleep := jitter(delay)
		if remaining <= 0 {
			sleep = jitter(firstDelay)
		} else {
			delay = min(2*delay, r.poll)
			sleep = min(sleep, remaining+jitter(firstDelay))
		}
		if retry.Sleep(ctx, sleep) != nil {
			return g, context.Cause(ctx)
		}
	}
}

// jitter returns a random time of at least d/2 and at most d. It spreads the requests of waiting
// processes.
func jitter(d time.Duration) time.Duration { return d/2 + mrand.N(d/2+1) }

// request is a statement that acquires a lock.
type request struct {
	id   string
	seen int64 // the token that the statement expects in the row
}

// acquisition is the state of one Acquire. A request for the lock is never repeated with the same
// id. If its outcome is unknown, the next request has a new id and takes over a lock that the
// earlier one may have acquired.
type acquisition struct {
	rows       *rows
	key        string
	ttl        time.Duration
	timeout    time.Duration
	unresolved []request // requests whose outcome is unknown
}

// maxTries is the maximum number of tries for one reply, if a reply is lost or two statements
// conflict.
const maxTries = 3

// request requests the lock. If another holder has it, request returns the remaining time until
// it expires. If neither a lock nor a positive time is returned, the caller must try again.
func (a *acquisition) request(ctx context.Context) (g driver.Grant, remaining time.Duration, err error) {
	for i := range maxTries {
		if i > 0 && retry.Sleep(ctx, jitter(firstDelay)) != nil {
			break
		}
		g, remaining, err = a.requestOnce(ctx)
		if err == nil || ctx.Err() != nil || !retryable(err) || errors.Is(err, context.DeadlineExceeded) && i > 0 {
			break
		}
	}
	return g, remaining, err
}

func (a *acquisition) requestOnce(ctx context.Context) (g driver.Grant, remaining time.Duration, err error) {
	s, err := open(ctx, a.rows.db, a.timeout)
	if err != nil {
		return g, 0, err
	}
	defer s.close()
	row, err := a.read(ctx, s)
	if err != nil {
		return g, 0, err
	}
	// The database never carries out a request that expects another token than this one.
	a.unresolved = slices.DeleteFunc(a.unresolved, func(r request) bool { return r.seen != row.token && r.id != row.owner })
	mine := a.mine(row)
	if row.remaining > 0 && !mine {
		return g, row.remaining, nil
	}
	g, err = a.take(ctx, s, row, mine)
	return g, 0, err
}

// read reads the row, and inserts it first if it is missing.
func (a *acquisition) read(ctx context.Context, s *session) (row, error) {
	r, err := s.read(ctx, readSQL(a.rows.table, a.key))
	if err != nil || r.exists {
		return r, err
	}
	if _, err = s.change(ctx, insertSQL(a.rows.table, a.key)); err != nil {
		return r, err
	}
	r, err = s.read(ctx, readSQL(a.rows.table, a.key))
	if err == nil && !r.exists {
		err = errors.New("the inserted row is missing; check the definition of the table (see mysqllock.Schema)")
	}
	return r, err
}

func (a *acquisition) mine(r row) bool {
	return slices.ContainsFunc(a.unresolved, func(u request) bool { return u.id == r.owner })
}

// take acquires a lock that is free, or that an earlier request of this Acquire has acquired. If
// it is too late, it returns neither a lock nor an error.
func (a *acquisition) take(ctx context.Context, s *session, r row, mine bool) (g driver.Grant, err error) {
	sent := time.Now()
	bound := r.clock + (sent.Sub(r.readAt) + a.timeout).Microseconds()
	id := rand.Text()
	c, err := s.change(ctx, takeSQL(a.rows.table, a.key, id, r.token, mine, bound, a.ttl))
	if err != nil { // even an error of the server may follow a commit
		a.unresolved = append(a.unresolved, request{id, r.token})
	}
	if c.matched { // the token has changed, so earlier requests can no longer be carried out
		k := &rowLock{rows: a.rows, key: a.key, id: id, timeout: a.timeout}
		g = driver.Grant{Lock: k, Token: c.token, Sent: sent, TTL: a.ttl}
	}
	return g, err
}

// cleanUp cleans up, in the background, after requests whose outcome is unknown. One reply is
// enough. Without a reply it stops after the TTL and one timeout: by then the requests are
// rejected as late, and locks that they have acquired have expired.
func (a *acquisition) cleanUp() {
	if len(a.unresolved) == 0 {
		return
	}
	statement := cleanUpSQL(a.rows.table, a.key, a.unresolved)
	a.rows.cleanups.Go(func() {
		delay := 5 * time.Millisecond
		for end := time.Now().Add(a.ttl + a.timeout); time.Now().Before(end); delay = min(2*delay, time.Second) {
			if _, err := a.rows.change(context.Background(), a.timeout, statement); err == nil {
				return
			}
			if retry.Sleep(a.rows.ctx, jitter(delay)) != nil {
				return
			}
		}
	})
}

// change executes one statement on any connection.
func (r *rows) change(ctx context.Context, timeout time.Duration, statement string) (change, error) {
	s, err := open(ctx, r.db, timeout)
	if err != nil {
		return change{}, err
	}
	defer s.close()
	return s.change(ctx, statement)
}

func (r *rows) Close() error {
	r.stop()
	r.cleanups.Wait()
	return nil
}

// rowLock is a lock that the request with this id has acquired. No other request has the same id,
// so a delayed statement of this lock cannot affect another holder.
type rowLock struct {
	rows    *rows
	key     string
	id      string
	timeout time.Duration
}

func (r *rowLock) Extend(ctx context.Context, ttl time.Duration) error {
	c, err := r.rows.change(ctx, r.timeout, extendSQL(r.rows.table, r.key, r.id, ttl))
	if err == nil && !c.matched {
		err = driver.ErrLost
	}
	return explain(r.rows.table, err)
}

func (r *rowLock) Release(ctx context.Context) error {
	c, err := r.rows.change(ctx, r.timeout, releaseSQL(r.rows.table, r.key, r.id))
	if err == nil && !(c.matched && c.ok) {
		err = driver.ErrLost
	}
	return explain(r.rows.table, err)
}
