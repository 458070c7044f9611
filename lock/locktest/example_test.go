package locktest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/locktest"
)

// service is a lock service in memory, and its driver.
type service struct {
	mu    sync.Mutex
	token int64
	held  map[string]*held // by key
}

// held is a lock, with its holder's token.
type held struct {
	service *service
	key     string
	token   int64
	expiry  time.Time
}

// Acquire implements driver.Driver.
func (s *service) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for ctx.Err() == nil {
		if h := s.take(r); h != nil {
			return driver.Grant{Lock: h, Token: h.token, Sent: h.expiry.Add(-r.TTL), TTL: r.TTL}, nil
		}
		if !r.Wait {
			return driver.Grant{}, driver.ErrHeld
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond): // retry
		}
	}
	return driver.Grant{}, context.Cause(ctx)
}

// Close implements driver.Driver.
func (s *service) Close() error { return nil }

// take returns nil if another holder has the lock.
func (s *service) take(r driver.Request) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if h := s.held[r.Key]; h != nil && now.Before(h.expiry) {
		return nil
	}
	s.token++
	h := &held{service: s, key: r.Key, token: s.token, expiry: now.Add(r.TTL)}
	s.held[r.Key] = h
	return h
}

// Extend implements driver.Lock.
func (h *held) Extend(_ context.Context, ttl time.Duration) error {
	h.service.mu.Lock()
	defer h.service.mu.Unlock()
	if now := time.Now(); h.service.held[h.key] == h && now.Before(h.expiry) {
		h.expiry = now.Add(ttl)
		return nil
	}
	return driver.ErrLost
}

// Release implements driver.Lock.
func (h *held) Release(context.Context) error {
	h.service.mu.Lock()
	defer h.service.mu.Unlock()
	if h.service.held[h.key] != h {
		return driver.ErrLost
	}
	delete(h.service.held, h.key)
	if !time.Now().Before(h.expiry) {
		return driver.ErrLost
	}
	return nil
}

// ExampleRun tests a driver with a service in memory. TestDriver stands for a test of yours.
// It needs a *testing.T, so it is compiled but not run.
func ExampleRun() {
	TestDriver := func(t *testing.T) {
		s := &service{held: make(map[string]*held)}
		locktest.Run(t, locktest.Backend{
			New: func(testing.TB, *lock.Options) driver.Driver {
				return s // or your driver, with its own connections
			},
		})
	}
	_ = TestDriver
}
