package rowlock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// rowOf returns the name of the row of a lock.
func rowOf(r driver.Request) string {
	if r.Kind == driver.Exclusive {
		return r.Key
	}
	return "{" + string(r.Kind) + "}" + r.Key
}

// sharedLock is an entry of a read-write lock or a semaphore, and the Acquire that requests it. All
// its requests have the same id. A request whose reply was lost cannot be carried out after the
// next change of the row, and the next request replaces its entry.
type sharedLock struct {
	rows    *rows
	request driver.Request
	key     string // of the row
	id      string

	unresolved  bool // a request may have left an entry
	releaseSent bool // a Release was sent, and its reply was lost
}

func (s *sharedLock) requestOnce(ctx context.Context) (g driver.Grant, remaining time.Duration, err error) {
	err = s.rows.update(ctx, s.key, s.request.Timeout, func(row Row, state holders.State) (holders.State, bool) {
		g = driver.Grant{}
		token := max(row.Token+1, row.Clock)
		next, left, changed := state.Take(s.id, s.request, row.Clock, token)
		if remaining = left; next.Find(s.id) != nil {
			g = driver.Grant{Lock: s, Token: token, Sent: row.readAt, TTL: s.request.TTL}
		}
		s.unresolved = s.unresolved || changed
		return next, changed
	})
	if err != nil {
		return driver.Grant{}, 0, err
	}
	return g, remaining, nil
}

// cleanUp removes the entry of an Acquire that has failed. It changes the row in any case, so that
// no earlier request can be carried out later.
func (s *sharedLock) cleanUp() {
	if !s.unresolved {
		return
	}
	s.rows.retry(s.request.TTL+s.request.Timeout, func() error {
		return s.rows.update(context.Background(), s.key, s.request.Timeout,
			func(row Row, state holders.State) (holders.State, bool) {
				next, _ := state.Live(row.Clock).Without(s.id)
				return next, true
			})
	})
}

func (s *sharedLock) Extend(ctx context.Context, ttl time.Duration) error {
	held := false
	err := s.rows.update(ctx, s.key, s.request.Timeout, func(row Row, state holders.State) (holders.State, bool) {
		next := state.Live(row.Clock)
		h := next.Find(s.id)
		if held = h != nil; held {
			h.Until = row.Clock + ttl.Microseconds()
		}
		return next, held
	})
	return s.verdict(held, err)
}

func (s *sharedLock) Release(ctx context.Context) error {
	held := false
	err := s.rows.update(ctx, s.key, s.request.Timeout,
		func(row Row, state holders.State) (next holders.State, _ bool) {
			next, held = state.Live(row.Clock).Without(s.id)
			return next, held
		})
	held = held || s.releaseSent
	s.releaseSent = s.releaseSent || err != nil
	return s.verdict(held, err)
}

func (s *sharedLock) verdict(held bool, err error) error {
	return s.rows.table.Explain(cmp.Or(err, lostUnless(held)))
}

// maxConflicts is the maximum number of changes that other processes make between the two
// statements of an update, before it fails.
const maxConflicts = 100

var errConflicts = errors.New("other processes change the lock all the time")

// update reads the holders of a lock, and replaces them with the result of change if that reports
// true. It repeats both as long as another process changes the row in between. After an error the
// replacement may have been made.
func (r *rows) update(ctx context.Context, key string, timeout time.Duration,
	change func(Row, holders.State) (next holders.State, changed bool)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := open(ctx, r.db, timeout)
	if err != nil {
		return err
	}
	defer s.close()
	for range maxConflicts {
		row, err := r.read(ctx, s, key)
		if err != nil {
			return err
		}
		state, err := holders.Parse(row.Owner)
		if err != nil {
			return err
		}
		next, changed := change(row, state)
		if !changed {
			return nil
		}
		t := row.next(next.String(), time.Now(), timeout)
		t.Mine = true // the entries have ends of their own
		for _, h := range next {
			t.TTL = max(t.TTL, time.Duration(h.Until-row.Clock)*time.Microsecond)
		}
		var taken bool
		err = s.do(ctx, func(ctx context.Context, c *sql.Conn) (err error) {
			taken, err = r.table.Take(ctx, c, key, t)
			return err
		})
		if err != nil || taken {
			return err
		}
		if err := retry.Sleep(ctx, jitter(firstDelay)); err != nil {
			return err
		}
	}
	return errConflicts
}

// Inspect returns the state of a lock of any kind. The table does not show who waits.
func (r *rows) Inspect(ctx context.Context, req driver.Request) (d driver.State, err error) {
	key := rowOf(req)
	var row Row
	err = r.do(ctx, req.Timeout, func(ctx context.Context, c *sql.Conn) (err error) {
		row, err = r.table.Read(ctx, c, key)
		return err
	})
	if err != nil {
		return d, r.table.Explain(err)
	}
	if req.Kind != driver.Exclusive {
		state, err := holders.Parse(row.Owner)
		return state.Inspect(row.Clock), err
	}
	if row.Remaining > 0 {
		d.Holders = []driver.Holder{{Label: holders.Label(row.Owner), Token: row.Token, Left: row.Remaining,
			Alone: true}}
	}
	return d, nil
}

// Break releases a lock on behalf of the holder with this token. A repeated extension, or a change
// of another holder, does not prevent that.
func (r *rows) Break(ctx context.Context, req driver.Request, token int64) error {
	broken := false
	if req.Kind != driver.Exclusive {
		err := r.update(ctx, rowOf(req), req.Timeout, func(row Row, s holders.State) (next holders.State, _ bool) {
			next, broken = s.Break(token, row.Clock)
			return next, broken
		})
		return r.table.Explain(cmp.Or(err, lostUnless(broken)))
	}
	err := r.do(ctx, req.Timeout, func(ctx context.Context, c *sql.Conn) error {
		row, err := r.table.Read(ctx, c, req.Key)
		if err != nil || row.Token != token || row.Remaining <= 0 {
			return err
		}
		broken, err = r.table.Release(ctx, c, req.Key, row.Owner)
		return err
	})
	return r.table.Explain(cmp.Or(err, lostUnless(broken)))
}

func lostUnless(held bool) error {
	if held {
		return nil
	}
	return driver.ErrLost
}
