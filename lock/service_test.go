package lock_test

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// newService returns an in-process service for several Lockers, like several processes. Tokens
// begin at the current time, as with NewLocal.
func newService() *service {
	return &service{token: time.Now().UnixMicro(), locks: make(map[string]*serviceLock)}
}

type service struct {
	mu    sync.Mutex
	token int64                   // the last token
	locks map[string]*serviceLock // the held locks
}

type serviceLock struct {
	service *service
	key     string
	token   int64
	since   time.Time
	until   time.Time
	gone    chan struct{} // closed when it is released
}

func (s *service) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for {
		mine, other, left := s.try(r)
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

// try acquires the lock, or returns its owner and the rest of the lock's life.
func (s *service) try(r driver.Request) (mine, other *serviceLock, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if other = s.locks[r.Key]; other != nil && now.Before(other.until) {
		return nil, other, other.until.Sub(now)
	}
	s.token++
	mine = &serviceLock{service: s, key: r.Key, token: s.token, since: now, until: now.Add(r.TTL),
		gone: make(chan struct{})}
	s.locks[r.Key] = mine
	return mine, nil, 0
}

func (s *serviceLock) Extend(_ context.Context, ttl time.Duration) error {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	if s.service.locks[s.key] != s {
		return driver.ErrLost
	}
	now := time.Now()
	if !now.Before(s.until) {
		return driver.ErrLost
	}
	s.until = now.Add(ttl)
	return nil
}

func (s *serviceLock) Release(context.Context) error {
	s.service.mu.Lock()
	defer s.service.mu.Unlock()
	if s.service.locks[s.key] != s {
		return driver.ErrLost
	}
	delete(s.service.locks, s.key)
	close(s.gone)
	if !time.Now().Before(s.until) {
		return driver.ErrLost
	}
	return nil
}

func (s *service) Close() error { return nil }
