package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// TestRandomUse calls everything in random order. There are never two owners with live contexts,
// tokens grow, and nothing stays locked or hangs.
func TestRandomUse(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			d := newService()
			service := []driver.Driver{d, &tardy{d}}[seed%2]
			var c holders
			var all sync.WaitGroup
			lockers := make([]*lock.Locker, 3)
			for i := range lockers {
				lockers[i] = locktest.Closed(t)(lock.New(service, &lock.Options{TTL: time.Second}))
				shared := lock.WithOwner(t.Context())
				for g := range 5 {
					rnd := rand.New(rand.NewPCG(seed, uint64(10*i+g)))
					ctx := t.Context()
					if g < 3 {
						ctx = shared
					}
					all.Go(func() {
						for range 20 {
							c.use(ctx, t, lockers[i], rnd, 10*i+max(g, 2))
						}
					})
				}
			}
			all.Wait()
			fresh, err := lockers[0].Acquire(t.Context(), "a", &lock.AcquireOptions{Wait: 3 * time.Second})
			locktest.Want(t, "acquire in the end", err, nil)
			locktest.Want(t, "release", fresh.Release(), nil)
			for _, l := range lockers {
				locktest.Want(t, "close", l.Close(), nil)
			}
		})
	}
}

// holders are the current leases with their owners.
type holders struct {
	mu     sync.Mutex
	leases map[*lock.Lease]int
}

func (h *holders) use(ctx context.Context, t *testing.T, l *lock.Locker, rnd *rand.Rand, owner int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(8000))*time.Millisecond)
	defer cancel()
	o := lock.AcquireOptions{Fixed: rnd.IntN(4) == 0, Wait: time.Duration(rnd.IntN(5000)) * time.Millisecond}
	if rnd.IntN(4) == 0 {
		o.MaxHold = time.Second
	}
	acquire := l.Acquire
	if rnd.IntN(3) == 0 {
		acquire = l.TryAcquire
	}
	s, err := acquire(ctx, "a", &o)
	if err != nil {
		if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		return
	}
	h.enter(t, s, owner)
	time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
	if rnd.IntN(4) == 0 {
		if err := s.Extend(ctx); err == nil && s.Context().Err() != nil && ctx.Err() == nil {
			t.Error("Extend of a lost lease succeeds")
		}
	}
	lost := errors.Is(context.Cause(s.Context()), lock.ErrLost)
	h.leave(s)
	if err := s.Release(); lost && !errors.Is(err, lock.ErrLost) || err != nil && !errors.Is(err, lock.ErrLost) {
		t.Errorf("release of a lease (lost: %v): %v", lost, err)
	}
}

func (h *holders) enter(t *testing.T, s *lock.Lease, owner int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for other, o := range h.leases {
		switch {
		case o != owner && other.Context().Err() == nil && s.Context().Err() == nil:
			t.Errorf("owner %d holds the lock (token %d) while owner %d does (token %d)",
				owner, s.Token(), o, other.Token())
		case o != owner && other.Token() >= s.Token():
			t.Errorf("token %d after %d", s.Token(), other.Token())
		}
	}
	if h.leases == nil {
		h.leases = map[*lock.Lease]int{}
	}
	h.leases[s] = owner
}

func (h *holders) leave(s *lock.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leases, s)
}
