package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A timeouts hook records how long each trip has until its timeout, and delays it.
type timeouts struct {
	delay time.Duration
	left  []time.Duration
}

func (*timeouts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *timeouts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "getrange" {
			return next(ctx, cmd)
		}
		end, _ := ctx.Deadline()
		h.left = append(h.left, time.Until(end))
		time.Sleep(h.delay)
		if err := ctx.Err(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*timeouts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// late makes a read whose trip is sent late after the read has joined it, because the process waits
// for a processor, or for trips in progress.
func late(t *testing.T, s *Store, ctx context.Context, wait time.Duration, before func()) error {
	b := &s.reads.one
	b.mu.Lock()
	b.running = maxTrips
	b.mu.Unlock()
	read := make(chan error, 1)
	go func() { read <- b.join(ctx, 0, readCommands(t.Context(), []string{"k"})...).Err(0) }()
	time.Sleep(wait)
	synctest.Wait() // until the read has joined
	before()
	b.run(true)
	return <-read
}

// The timeout of a trip begins when it is sent. The deadlines of its readers still end their waits.
func TestTimeoutOfATripBeginsWhenItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		s := open(t, rdb, 250*time.Millisecond)
		hook := &timeouts{delay: 160 * time.Millisecond}
		rdb.AddHook(hook)
		for _, wait := range []time.Duration{0, 160 * time.Millisecond, 10 * time.Second} {
			if err := late(t, s, t.Context(), wait, func() {}); err != nil {
				t.Errorf("sent after %v: %v", wait, err)
			}
		}
		for _, left := range hook.left {
			if left != 250*time.Millisecond {
				t.Errorf("a trip has %v until its timeout", left)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := late(t, s, ctx, 200*time.Millisecond, func() {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the deadline of the reader: %v", err)
		}
		synctest.Wait()
	})
}

// A trip that has waited while Redis went down is not sent.
func TestTripIsNotSentToARedisThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		s := open(t, rdb, 250*time.Millisecond)
		s.conn.Watch("p", 250*time.Millisecond)
		hook := &timeouts{}
		rdb.AddHook(hook)
		m.SetError("LOADING Redis is loading") // probes fail too
		err := late(t, s, t.Context(), time.Second, func() {
			for range 3 {
				s.conn.Failed(t.Context(), "k", errors.New("LOADING Redis is loading"))
				s.conn.Failed(t.Context(), "k", context.DeadlineExceeded)
			}
		})
		if !errors.Is(err, conn.ErrDown) || len(hook.left) != 0 {
			t.Errorf("%v, and %d trips", err, len(hook.left))
		}
		s.conn.Close()
	})
}
