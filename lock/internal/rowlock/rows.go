// Package rowlock is the driver of locks that are rows of a table of an SQL database. The packages
// mysqllock and pglock provide the statements.
package rowlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// New returns a driver of the locks in a table. poll is the maximum time between two reads of a
// lock that another holder has.
func New(db *sql.DB, table Table, poll time.Duration) driver.Driver {
	r := &rows{db: db, table: table, poll: poll}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// rows is the driver of New.
type rows struct {
	db    *sql.DB
	table Table
	poll  time.Duration

	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	cleanups sync.WaitGroup
}

func (r *rows) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	var a attempt = &acquisition{rows: r, key: req.Key, ttl: req.TTL, timeout: req.Timeout, label: req.Label}
	if req.Kind != driver.Exclusive {
		a = &sharedLock{rows: r, request: req, key: rowOf(req), id: holders.NewID(req.Label)}
	}
	g, err := r.acquire(ctx, a, req.Wait)
	if err != nil {
		a.cleanUp()
	}
	return g, r.table.Explain(err)
}

// attempt is the state of one Acquire.
type attempt interface {
	// requestOnce requests the lock. If other holders prevent that, it returns the remaining time
	// until one of them expires. If it returns neither a lock nor a positive time, the caller must
	// try again.
	requestOnce(ctx context.Context) (g driver.Grant, remaining time.Duration, err error)

	// cleanUp undoes, in the background, what an Acquire that has failed may have left behind.
	cleanUp()
}

const (
	firstDelay = 2 * time.Millisecond
	maxRaces   = 3 // maximum number of tries, without waiting, for a lock that was free but was not acquired
)

func (r *rows) acquire(ctx context.Context, a attempt, wait bool) (driver.Grant, error) {
	delay, races, wasHeld := min(firstDelay, r.poll), 0, false
	for ; ; wasHeld = true {
		g, remaining, err := r.request(ctx, a)
		switch {
		case err != nil && wasHeld && ctx.Err() != nil:
			return g, context.Cause(ctx)
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

// acquisition is the state of one Acquire. A request for the lock is never repeated with the same
// id. If its outcome is unknown, the next request has a new id and takes over a lock that the
// earlier one may have acquired.
type acquisition struct {
	rows       *rows
	key        string
	label      string
	ttl        time.Duration
	timeout    time.Duration
	unresolved []Request // requests whose outcome is unknown
}

// maxTries is the maximum number of tries for one reply, if a reply is lost or two statements
// conflict.
const maxTries = 3

// request is requestOnce, and repeats it after an error that may pass.
func (r *rows) request(ctx context.Context, a attempt) (g driver.Grant, remaining time.Duration, err error) {
	for i := range maxTries {
		if i > 0 && retry.Sleep(ctx, jitter(firstDelay)) != nil {
			break
		}
		g, remaining, err = a.requestOnce(ctx)
		if err == nil || ctx.Err() != nil || !r.table.Retryable(err) ||
			errors.Is(err, context.DeadlineExceeded) && i > 0 {
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
	row, err := a.rows.read(ctx, s, a.key)
	if err != nil {
		return g, 0, err
	}
	// The database never carries out a request that expects another token than this one.
	a.unresolved = slices.DeleteFunc(a.unresolved,
		func(r Request) bool { return r.Seen != row.Token && r.ID != row.Owner })
	mine := a.mine(row)
	if row.Remaining > 0 && !mine {
		return g, row.Remaining, nil
	}
	g, err = a.take(ctx, s, row, mine)
	return g, 0, err
}

// read reads the row, and inserts it first if it is missing.
func (r *rows) read(ctx context.Context, s *session, key string) (row Row, err error) {
	read := func(ctx context.Context, c *sql.Conn) (err error) {
		sent := time.Now()
		row, err = r.table.Read(ctx, c, key)
		row.readAt = sent
		return err
	}
	if err = s.do(ctx, read); err != nil || row.Exists {
		return row, err
	}
	err = s.do(ctx, func(ctx context.Context, c *sql.Conn) error { return r.table.Insert(ctx, c, key) })
	if err != nil {
		return row, err
	}
	err = s.do(ctx, read)
	if err == nil && !row.Exists {
		err = errors.New("the inserted row is missing: row-level security hides it, or the table has another " +
			"definition (see Schema)")
	}
	return row, err
}

func (a *acquisition) mine(r Row) bool {
	return slices.ContainsFunc(a.unresolved, func(u Request) bool { return u.ID == r.Owner })
}

// take acquires a lock that is free, or that an earlier request of this Acquire has acquired. If
// it is too late, it returns neither a lock nor an error.
func (a *acquisition) take(ctx context.Context, s *session, r Row, mine bool) (g driver.Grant, err error) {
	sent := time.Now()
	t := r.next(holders.NewID(a.label), sent, a.timeout)
	t.Mine, t.TTL = mine, a.ttl
	var taken bool
	err = s.do(ctx, func(ctx context.Context, c *sql.Conn) (err error) {
		taken, err = a.rows.table.Take(ctx, c, a.key, t)
		return err
	})
	if err != nil { // even an error of the server may follow a commit
		a.unresolved = append(a.unresolved, t.Request)
		return g, err
	}
	if taken { // the token has changed, so earlier requests can no longer be carried out
		k := &rowLock{rows: a.rows, key: a.key, id: t.ID, timeout: a.timeout}
		g = driver.Grant{Lock: k, Token: t.Token, Sent: sent, TTL: a.ttl}
	}
	return g, nil
}

// next returns a Take for the row that was read, with the next token.
func (r Row) next(id string, sent time.Time, timeout time.Duration) Take {
	return Take{Request: Request{ID: id, Seen: r.Token}, Token: max(r.Token+1, r.Clock),
		Bound: r.Clock + (sent.Sub(r.readAt) + timeout).Microseconds()}
}

// cleanUp cleans up, in the background, after requests whose outcome is unknown. One reply is
// enough. Without a reply it stops after the TTL and one timeout: by then the requests are
// rejected as late, and locks that they have acquired have expired.
func (a *acquisition) cleanUp() {
	if len(a.unresolved) == 0 {
		return
	}
	a.rows.retry(a.ttl+a.timeout, func() error {
		return a.rows.do(context.Background(), a.timeout, func(ctx context.Context, c *sql.Conn) error {
			return a.rows.table.CleanUp(ctx, c, a.key, a.unresolved)
		})
	})
}

// retry calls undo in the background until it succeeds or life has passed.
func (r *rows) retry(life time.Duration, undo func() error) {
	r.cleanups.Go(func() {
		delay := 5 * time.Millisecond
		for end := time.Now().Add(life); time.Now().Before(end); delay = min(2*delay, time.Second) {
			if undo() == nil || retry.Sleep(r.ctx, jitter(delay)) != nil {
				return
			}
		}
	})
}

// do calls f with any connection.
func (r *rows) do(ctx context.Context, timeout time.Duration, f func(context.Context, *sql.Conn) error) error {
	s, err := open(ctx, r.db, timeout)
	if err != nil {
		return err
	}
	defer s.close()
	return s.do(ctx, f)
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
	return r.change(ctx, func(ctx context.Context, c *sql.Conn) (bool, error) {
		return r.rows.table.Extend(ctx, c, r.key, r.id, ttl)
	})
}

func (r *rowLock) Release(ctx context.Context) error {
	return r.change(ctx, func(ctx context.Context, c *sql.Conn) (bool, error) {
		return r.rows.table.Release(ctx, c, r.key, r.id)
	})
}

// change executes a statement that reports whether this holder has the lock.
func (r *rowLock) change(ctx context.Context, f func(context.Context, *sql.Conn) (bool, error)) error {
	var held bool
	err := r.rows.do(ctx, r.timeout, func(ctx context.Context, c *sql.Conn) (err error) {
		held, err = f(ctx, c)
		return err
	})
	return r.rows.table.Explain(cmp.Or(err, lostUnless(held)))
}
