package mysqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// named is the driver of NewNamed.
type named struct {
	db         *sql.DB
	table      string // quoted
	background background

	mu   sync.Mutex
	held map[*namedLock]struct{}
}

// lockName is what the server calls a lock: 64 characters are allowed, and case does not count.
func lockName(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

func (d *named) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for i := 1; ; i++ {
		g, err := d.acquireOnce(ctx, r)
		if err == nil || errors.Is(err, driver.ErrHeld) || i == tries || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) && i > 1 || !again(err) || !sleep(ctx, jitter(firstPause)) {
			return g, explain(d.table, err)
		}
	}
}

// acquireOnce gets the lock on a connection of its own. Unless it gets it, it closes that: with it all goes that it may have asked for. The session is not to be used again anyway, with the
// time-out it has.
func (d *named) acquireOnce(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s, err := open(ctx, d.db, r.Timeout)
	if err != nil {
		return driver.Grant{}, err
	}
	k := &namedLock{d: d, s: s, name: lockName(r.Key), timeout: r.Timeout, busy: make(chan struct{}, 1)}
	g, err := k.acquire(ctx, r)
	if err != nil {
		s.broken = true
		s.close()
	}
	return g, err
}

// slice is how long, in seconds, the server is asked to wait at a time: so long it may take to notice that nobody waits any more.
const slice = 1

func (k *namedLock) acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	if err := k.limit(ctx, r.TTL); err != nil {
		return g, err
	}
	if err := k.wait(ctx, r.Wait); err != nil {
		return g, err
	}
	sent := time.Now()
	var token int64
	if r.NoToken {
		if ours, err := k.s.number(ctx, k.timeout, k.probe()); err != nil || ours != 1 {
			return g, errors.Join(errNotOurs, err)
		}
	} else if token, err = k.count(ctx, r.Key); err != nil {
		return g, err
	}
	k.begin()
	return driver.Grant{Lock: k, Token: token, Sent: sent, TTL: r.TTL}, nil
}

var errNotOurs = errors.New("the lock is not this connection's")

// limit has the server close the connection when nothing was heard of it for the life of a lock.
func (k *namedLock) limit(ctx context.Context, ttl time.Duration) error {
	seconds := (ttl + time.Second - 1) / time.Second
	return k.s.exec(ctx, fmt.Sprintf("SET SESSION wait_timeout = %d", seconds))
}

// wait gets the lock.
func (k *namedLock) wait(ctx context.Context, wait bool) error {
	seconds := 0
	if wait {
		seconds = slice
	}
	var err error
	if k.id, err = k.s.number(ctx, k.timeout, "SELECT CONNECTION_ID()"); err != nil {
		return err
	}
	for {
		got, err := k.s.number(ctx, time.Duration(seconds)*time.Second+k.timeout, fmt.Sprintf("SELECT GET_LOCK('%s', %d)", k.name, seconds))
		switch {
		case err != nil:
			return err
		case got == 1:
			return nil
		case got != 0:
			return errors.New("the server could not wait for the lock")
		case !wait:
			return driver.ErrHeld
		}
	}
}

// count is the next token. It is asked for on the connection that has the lock: so tokens come in the order of the holders.
func (k *namedLock) count(ctx context.Context, key string) (int64, error) {
	c, err := k.s.change(ctx, countSQL(k.d.table, key))
	if err == nil && !c.matched {
		if _, err = k.s.change(ctx, makeSQL(k.d.table, key)); err == nil {
			c, err = k.s.change(ctx, countSQL(k.d.table, key))
		}
	}
	if err == nil && !c.matched {
		err = errors.New("the table does not keep its rows (see mysqllock.Schema)")
	}
	return c.token, err
}

// number is the one number that a statement answers; -1 for NULL.
func (s *session) number(ctx context.Context, timeout time.Duration, statement string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var n sql.NullInt64
	err := s.conn.QueryRowContext(ctx, statement).Scan(&n)
	if err == nil && !n.Valid {
		return -1, nil
	}
	return n.Int64, err
}

func (d *named) Close() error {
	d.mu.Lock()
	held := make([]*namedLock, 0, len(d.held))
	for k := range d.held {
		held = append(held, k)
	}
	d.mu.Unlock()
	for _, k := range held {
		k.drop()
	}
	d.background.close()
	return nil
}
