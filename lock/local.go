package lock

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// NewLocal returns a Locker whose locks exist only in this process, for tests and for programs
// that run as a single process. They behave like other locks, including their TTL. Tokens are at
// least the current time in microseconds since 1970, so they also increase across restarts. Each
// Locker has its own locks. A nil options means the defaults.
func NewLocal(options *Options) (*Locker, error) { return New(newLocal(), options) }

func newLocal() *local {
	return &local{began: time.Now(), locks: make(map[localKey]holders.State), changed: make(chan struct{})}
}

// local is the driver of NewLocal.
type local struct {
	began time.Time

	mu      sync.Mutex
	locks   map[localKey]holders.State
	token   int64
	changed chan struct{} // closed when a holder is removed
}

type localKey struct {
	kind driver.Kind
	key  string
}

// now returns the time in microseconds. It never goes back.
func (l *local) now() int64 { return l.began.UnixMicro() + time.Since(l.began).Microseconds() }

func (l *local) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	k := &localLease{local: l, key: localKey{r.Kind, r.Key}, id: holders.NewID(r.Label)}
	for {
		g, left, changed := l.take(k, r)
		switch {
		case g.Lock != nil:
			return g, nil
		case !r.Wait:
			return g, driver.ErrHeld
		}
		end := time.NewTimer(min(left, r.TTL/3)) // a waiting writer renews its entry
		select {
		case <-changed:
		case <-end.C:
		case <-ctx.Done():
			k.update(func(s holders.State, _ int64) (holders.State, bool) { return s.Without(k.id) })
			end.Stop()
			return g, context.Cause(ctx)
		}
		end.Stop()
	}
}

// take acquires the lock, or returns when to try again.
func (l *local) take(k *localLease, r driver.Request) (g driver.Grant, left time.Duration, changed <-chan struct{}) {
	sent := time.Now()
	k.update(func(s holders.State, now int64) (next holders.State, ok bool) {
		token := max(l.token+1, now)
		next, left, _ = s.Take(k.id, r, now, token)
		if next.Find(k.id) != nil {
			l.token = token
			g = driver.Grant{Lock: k, Token: token, Sent: sent, TTL: r.TTL}
		}
		changed = l.changed
		return next, false
	})
	return g, left, changed
}

func (l *local) Inspect(_ context.Context, r driver.Request) (d driver.State, err error) {
	k := &localLease{local: l, key: localKey{r.Kind, r.Key}}
	k.update(func(s holders.State, now int64) (holders.State, bool) {
		d = s.Inspect(now)
		return s, false
	})
	return d, nil
}

func (l *local) Break(_ context.Context, r driver.Request, token int64) error {
	k := &localLease{local: l, key: localKey{r.Kind, r.Key}}
	return k.update(func(s holders.State, now int64) (holders.State, bool) { return s.Break(token, now) })
}

func (l *local) Close() error { return nil }

// localLease is a lock that the request with this id has acquired.
type localLease struct {
	local *local
	key   localKey
	id    string
}

// update replaces the holders of the lock. f reports whether it has removed one; otherwise update
// returns ErrLost.
func (k *localLease) update(f func(s holders.State, now int64) (next holders.State, removed bool)) error {
	l := k.local
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	next, removed := f(l.locks[k.key].Live(now), now)
	if len(next) == 0 {
		delete(l.locks, k.key)
	} else {
		l.locks[k.key] = next
	}
	if !removed {
		return driver.ErrLost
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (k *localLease) Extend(_ context.Context, ttl time.Duration) (err error) {
	err = driver.ErrLost
	k.update(func(s holders.State, now int64) (holders.State, bool) { //nolint:errcheck // removes none
		if h := s.Find(k.id); h != nil {
			h.Until, err = now+ttl.Microseconds(), nil
		}
		return s, false
	})
	return err
}

func (k *localLease) Release(context.Context) error {
	return k.update(func(s holders.State, _ int64) (holders.State, bool) { return s.Without(k.id) })
}
