package lock

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewLocal makes a Locker whose locks are this process's own: for tests, and for programs that run
// once. They behave as other locks do, lives included. Tokens begin at the time in microseconds
// since 1970, so that they grow beyond a restart. nil options are the defaults.
func NewLocal(options *LockerOptions) (*Locker, error) {
	return New(newLocal(), options)
}

func newLocal() *local {
	return &local{token: time.Now().UnixMicro(), locks: make(map[string]*localLock)}
}

type local struct {
	mu    sync.Mutex
	token int64                 // the last
	locks map[string]*localLock // those that are held
}

type localLock struct {
	local *local
	key   string
	token int64
	since time.Time
	until time.Time
	gone  chan struct{} // closed when it is released
}

func (d *local) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for {
		mine, other, left := d.try(r)
		if mine != nil {
			return driver.Grant{Lock: mine, Token: mine.token, Sent: mine.since, TTL: r.TTL}, nil
		}
		if !r.Wait {
			return driver.Grant{}, driver.ErrHeld
		}
		expiry := time.NewTimer(left)
		select {
		case <-other.gone:
		case <-expiry.C:
		case <-ctx.Done():
			expiry.Stop()
			return driver.Grant{}, context.Cause(ctx)
		}
		expiry.Stop()
	}
}

// try takes the lock, or returns its owner, and for how much longer it has it.
func (d *local) try(r driver.Request) (mine, other *localLock, left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if other = d.locks[r.Key]; other != nil && now.Before(other.until) {
		return nil, other, other.until.Sub(now)
	}
	d.token++
	mine = &localLock{local: d, key: r.Key, token: d.token, since: now, until: now.Add(r.TTL), gone: make(chan struct{})}
	d.locks[r.Key] = mine
	return mine, nil, 0
}

func (k *localLock) Extend(_ context.Context, ttl time.Duration) error {
	k.local.mu.Lock()
	defer k.local.mu.Unlock()
	if k.local.locks[k.key] != k {
		return driver.ErrLost
	}
	now := time.Now()
	if !now.Before(k.until) {
		return driver.ErrLost
	}
	k.until = now.Add(ttl)
	return nil
}

func (k *localLock) Release(context.Context) error {
	k.local.mu.Lock()
	defer k.local.mu.Unlock()
	if k.local.locks[k.key] != k {
		return driver.ErrLost
	}
	delete(k.local.locks, k.key)
	close(k.gone)
	if !time.Now().Before(k.until) {
		return driver.ErrLost
	}
	return nil
}

func (d *local) Close() error { return nil }
