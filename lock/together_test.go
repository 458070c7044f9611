package lock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// sent counts the commands of a client.
type sent struct{ n atomic.Int64 }

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.n.Add(1)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestAcquireAllInOneTrip: on one Redis, several locks are acquired by one command, with one token,
// and a lost reply leaves none of them behind.
func TestAcquireAllInOneTrip(t *testing.T) {
	server := testenv.SharedRedis(t)
	rdb := server.Client(t)
	l := locktest.Closed(t)(lock.NewRedis(rdb, locktest.Patient()))
	names := []string{"a", "b", "c", "d", "e"}
	first, err := l.AcquireAll(t.Context(), names, nil) // loads the scripts
	locktest.Want(t, "acquire", err, nil)
	locktest.Want(t, "release", first.Release(), nil)
	var count sent
	rdb.AddHook(&count)
	locks, err := l.AcquireAll(t.Context(), names, nil)
	locktest.Want(t, "acquire", err, nil)
	if n := count.n.Load(); n != 1 {
		t.Errorf("%d commands", n)
	}
	for _, name := range names {
		if locks.Token(name) != locks.Token("a") || locks.Token(name) <= first.Token(name) {
			t.Errorf("token %d after %d", locks.Token(name), first.Token(name))
		}
	}
	locktest.Want(t, "release", locks.Release(), nil)
}

// TestAcquireAllLostReply: the next request takes over what a request whose reply was lost has
// acquired, and a cancelled AcquireAll leaves no lock behind.
func TestAcquireAllLostReply(t *testing.T) {
	p, l, other := throughProxy(t, locktest.Patient())
	names := []string{"a", "b"}
	first, err := l.AcquireAll(t.Context(), names, nil)
	locktest.Want(t, "acquire", err, nil)
	locktest.Want(t, "release", first.Release(), nil)
	for _, cancelled := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var lost atomic.Bool
		p.OnRequest(func([]byte) testenv.Action {
			if !lost.CompareAndSwap(false, true) {
				return testenv.Pass
			}
			if cancelled {
				cancel()
			}
			return testenv.LoseReply
		})
		locks, err := l.AcquireAll(ctx, names, nil)
		switch {
		case cancelled && !errors.Is(err, context.Canceled), !cancelled && err != nil:
			t.Fatal(err)
		case !cancelled:
			locktest.Want(t, "release", locks.Release(), nil)
		}
		again, err := other.AcquireAll(t.Context(), names, nil)
		locktest.Want(t, "acquire by another", err, nil)
		locktest.Want(t, "release", again.Release(), nil)
	}
}
