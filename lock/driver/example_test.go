package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// shelf is a service for one process: each key has at most one holder. A real one is another
// program, and its requests can fail or time out.
type shelf struct {
	mu    sync.Mutex
	token int64
	held  map[string]*holder
}

type holder struct {
	shelf *shelf
	key   string
	until time.Time
}

func (s *shelf) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for {
		if grant, ok := s.try(r); ok {
			return grant, nil
		}
		if !r.Wait {
			return driver.Grant{}, driver.ErrHeld
		}
		select {
		case <-ctx.Done():
			return driver.Grant{}, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *shelf) try(r driver.Request) (driver.Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if h := s.held[r.Key]; h != nil && now.Before(h.until) {
		return driver.Grant{}, false
	}
	s.token++ // only grows, also over all keys
	h := &holder{s, r.Key, now.Add(r.TTL)}
	s.held[r.Key] = h
	return driver.Grant{Lock: h, Token: s.token, Sent: now, TTL: r.TTL}, true
}

func (s *shelf) Close() error { return nil }

func (h *holder) Extend(_ context.Context, ttl time.Duration) error {
	h.shelf.mu.Lock()
	defer h.shelf.mu.Unlock()
	if h.shelf.held[h.key] != h || time.Now().After(h.until) {
		return driver.ErrLost
	}
	h.until = time.Now().Add(ttl)
	return nil
}

func (h *holder) Release(context.Context) error {
	h.shelf.mu.Lock()
	defer h.shelf.mu.Unlock()
	if h.shelf.held[h.key] != h {
		return driver.ErrLost
	}
	delete(h.shelf.held, h.key)
	return nil
}

// A Locker over a service of your own. Test the Driver with lock/locktest.
func ExampleDriver() {
	locker, err := lock.New(&shelf{held: map[string]*holder{}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	ctx := context.Background()
	lease, err := locker.TryAcquire(ctx, "nightly", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lease.Token())
	_, err = locker.TryAcquire(ctx, "nightly", nil)
	fmt.Println(errors.Is(err, lock.ErrHeld))
	fmt.Println(lease.Release())
	// Output:
	// 1
	// true
	// <nil>
}
