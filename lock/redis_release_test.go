package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// losesAnswers has the answer to the next command be lost.
type losesAnswers struct{ next bool }

func (h *losesAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *losesAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *losesAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.next {
			h.next = false
			err = errors.New("the connection is lost")
			cmd.SetErr(err)
		}
		return err
	}
}

// A release whose answer is lost is asked for again, and finds the lock gone: that is no loss.
func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		h := &losesAnswers{}
		rdb.AddHook(h)
		l := closed(t)(lock.NewRedis(rdb, nil))
		for range 2 {
			lease, err := l.Acquire(t.Context(), "a", nil)
			want(t, "acquire", err, nil)
			h.next = true
			want(t, "release", lease.Release(), nil)
		}
		l.Close()
	})
}
