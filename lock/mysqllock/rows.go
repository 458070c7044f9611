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
	table string // quoted
	poll  time.Duration

	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	settling sync.WaitGroup
}

func (d *rows) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	a := &asking{d: d, key: r.Key, ttl: r.TTL, timeout: r.Timeout}
	g, err := d.acquire(ctx, a, r.Wait)
	if err != nil {
		a.settle()
	}
	return g, explain(d.table, err)
}

const (
	firstPause = 2 * time.Millisecond
	races      = 3 // how often a caller that does not wait tries to get a lock that was free a moment ago
)

func (d *rows) acquire(ctx context.Context, a *asking, wait bool) (driver.Grant, error) {
	pause, raced := min(firstPause, d.poll), 0
	for {
		g, left, err := a.ask(ctx)
		switch {
		case err != nil, g.Lock != nil:
			return g, err
		case left <= 0: // another was faster, or the request was late
			raced++
		}
		if !wait && (left > 0 || raced == races) {
			return g, driver.ErrHeld
		}
		nap := jitter(pause)
		if left <= 0 {
			nap = jitter(firstPause)
		} else {
			pause = min(2*pause, d.poll)
			nap = min(nap, left+jitter(firstPause))
		}
		if retry.Sleep(ctx, nap) != nil {
			return g, context.Cause(ctx)
		}
	}
}

// jitter keeps those who wait from asking all at once.
func jitter(d time.Duration) time.Duration { return d/2 + mrand.N(d/2+1) }

// request is one statement that takes a lock.
type request struct {
	id   string
	seen int64 // the token that it expects
}

// asking is one Acquire. A request for a lock is sent once: if it is not known what has become of
// it, the next has another id, and takes over what it may have got.
type asking struct {
	d       *rows
	key     string
	ttl     time.Duration
	timeout time.Duration
	unknown []request // of which it is not known whether they were, or will be, carried out
}

// tries is how often it is asked for one answer, if that is lost or two statements are in each
// other's way.
const tries = 3

// ask asks for the lock. If somebody else has it, it answers for how long at most; if that is not
// above 0, it is to be asked again.
func (a *asking) ask(ctx context.Context) (g driver.Grant, left time.Duration, err error) {
	for i := range tries {
		if i > 0 && retry.Sleep(ctx, jitter(firstPause)) != nil {
			break
		}
		g, left, err = a.askOnce(ctx)
		if err == nil || ctx.Err() != nil || !again(err) || errors.Is(err, context.DeadlineExceeded) && i > 0 {
			break
		}
	}
	return g, left, err
}

func (a *asking) askOnce(ctx context.Context) (g driver.Grant, left time.Duration, err error) {
	s, err := open(ctx, a.d.db, a.timeout)
	if err != nil {
		return g, 0, err
	}
	defer s.close()
	row, err := a.read(ctx, s)
	if err != nil {
		return g, 0, err
	}
	// A request that expects another token than this is not carried out any more.
	a.unknown = slices.DeleteFunc(a.unknown, func(r request) bool { return r.seen != row.token && r.id != row.owner })
	mine := a.mine(row)
	if row.left > 0 && !mine {
		return g, row.left, nil
	}
	g, err = a.take(ctx, s, row, mine)
	return g, 0, err
}

// read reads the row, which it makes if there is none.
func (a *asking) read(ctx context.Context, s *session) (row, error) {
	r, err := s.read(ctx, readSQL(a.d.table, a.key))
	if err != nil || r.exists {
		return r, err
	}
	if _, err = s.change(ctx, makeSQL(a.d.table, a.key)); err != nil {
		return r, err
	}
	r, err = s.read(ctx, readSQL(a.d.table, a.key))
	if err == nil && !r.exists {
		err = errors.New("the table does not keep its rows (see mysqllock.Schema)")
	}
	return r, err
}

func (a *asking) mine(r row) bool {
	return slices.ContainsFunc(a.unknown, func(u request) bool { return u.id == r.owner })
}

// take takes a lock that is free, or that a request before has got. It returns neither a lock nor
// an error if it was too late.
func (a *asking) take(ctx context.Context, s *session, r row, mine bool) (g driver.Grant, err error) {
	sent := time.Now()
	bound := r.clock + (sent.Sub(r.asked) + a.timeout).Microseconds()
	id := rand.Text()
	c, err := s.change(ctx, takeSQL(a.d.table, a.key, id, r.token, mine, bound, a.ttl))
	if err != nil { // some errors of a server may follow a commit, too
		a.unknown = append(a.unknown, request{id, r.token})
	}
	if c.matched { // no other request expects the token that there is now
		k := &rowLock{d: a.d, key: a.key, id: id, timeout: a.timeout}
		g = driver.Grant{Lock: k, Token: c.token, Sent: sent, TTL: a.ttl}
	}
	return g, err
}

// settle sees to it, in the background, that requests that may yet be carried out leave nothing
// behind. One answer is enough. If there is none for as long as the lock lives, they are refused as
// late, or what they have got is over.
func (a *asking) settle() {
	if len(a.unknown) == 0 {
		return
	}
	statement := settleSQL(a.d.table, a.key, a.unknown)
	a.d.settling.Go(func() {
		pause := 5 * time.Millisecond
		for end := time.Now().Add(a.ttl + a.timeout); time.Now().Before(end); pause = min(2*pause, time.Second) {
			if _, err := a.d.change(context.Background(), a.timeout, statement); err == nil {
				return
			}
			if retry.Sleep(a.d.ctx, jitter(pause)) != nil {
				return
			}
		}
	})
}

// change carries out one statement on any connection.
func (d *rows) change(ctx context.Context, timeout time.Duration, statement string) (change, error) {
	s, err := open(ctx, d.db, timeout)
	if err != nil {
		return change{}, err
	}
	defer s.close()
	return s.change(ctx, statement)
}

func (d *rows) Close() error {
	d.stop()
	d.settling.Wait()
	return nil
}

// rowLock is held under an id, that no other request has: so nothing that it sends, however late,
// can harm another holder.
type rowLock struct {
	d       *rows
	key     string
	id      string
	timeout time.Duration
}

func (r *rowLock) Extend(ctx context.Context, ttl time.Duration) error {
	c, err := r.d.change(ctx, r.timeout, extendSQL(r.d.table, r.key, r.id, ttl))
	if err == nil && !c.matched {
		err = driver.ErrLost
	}
	return explain(r.d.table, err)
}

func (r *rowLock) Release(ctx context.Context) error {
	c, err := r.d.change(ctx, r.timeout, releaseSQL(r.d.table, r.key, r.id))
	if err == nil && !(c.matched && c.yes) {
		err = driver.ErrLost
	}
	return explain(r.d.table, err)
}
