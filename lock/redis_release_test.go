package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// dropsReplies drops the reply to the next command.
type dropsReplies struct{ next bool }

func (l *dropsReplies) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *dropsReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *dropsReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && l.next { // other commands, in the background, leave the field alone
			l.next = false
			err = errors.New("the connection is lost")
			cmd.SetErr(err)
		}
		return err
	}
}

// A release whose reply is lost is repeated and finds the lock gone. That does not count as a loss.
func TestLostReleaseReplyIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		h := &dropsReplies{}
		rdb.AddHook(h)
		l := locktest.Closed(t)(lock.NewRedis(rdb, nil))
		for range 2 {
			lease, err := l.Acquire(t.Context(), "a", nil)
			locktest.Want(t, "acquire", err, nil)
			h.next = true
			locktest.Want(t, "release", lease.Release(), nil)
		}
		l.Close()
	})
}

// lasting is a hook that sends requests even after their callers have left.
type lasting struct{ locktest.Scripted }

func (l lasting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return l.Scripted.ProcessHook(func(ctx context.Context, cmd redis.Cmder) error {
		return next(context.WithoutCancel(ctx), cmd)
	})
}

// TestCloseDuringARequest: a request that Close has cancelled leaves no lock behind, even if the
// server receives it after the request to release it.
func TestCloseDuringARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		direct := redis.NewClient(rdb.Options())
		defer direct.Close()
		other := locktest.Closed(t)(lock.NewRedis(direct, nil))
		if err := direct.ScriptLoad(t.Context(), lock.RedisSettle.Source).Err(); err != nil {
			t.Fatal(err)
		}
		asked, settled, carriedOut := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var requests, releases atomic.Int32
		rdb.AddHook(lasting{locktest.Scripted{Wrap: func(s string, next func() error) error {
			switch {
			case locktest.Is(s, lock.RedisAcquire) && requests.Add(1) == 2:
				close(asked)
				<-settled
				defer close(carriedOut)
			case locktest.Is(s, lock.RedisSettle) && releases.Add(1) == 1:
				defer close(settled)
			}
			return next()
		}}})
		l := locktest.Closed(t)(lock.NewRedis(rdb, nil))
		lease, err := l.Acquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", lease.Release(), nil)

		ended := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), "a", nil)
			ended <- err
		}()
		<-asked
		locktest.Want(t, "close", l.Close(), nil)
		locktest.Want(t, "a wait", <-ended, lock.ErrClosed)
		<-carriedOut
		if value, _ := m.Get("lock:{a}"); !strings.HasPrefix(value, "L1 - ") {
			t.Errorf("the lock is not released: %q", value)
		}
		lease, err = other.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", lease.Release(), nil)
	})
}
