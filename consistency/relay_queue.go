package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// ask calls the queue, which may be the user's: a panic, or runtime.Goexit, is an error.
func (r *relayRun) ask(call func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("consistency: the queue has called runtime.Goexit")
		returned := false
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("consistency: the queue panicked with a %T", p)
			}
			if !returned {
				r.count(func(c *counted) { c.Panics++ })
			}
			result <- err
		}()
		err = call()
		returned = true
	}()
	return <-result
}

// claim claims items. A third of a claim's life is for the claim, another one for the items, and
// another for giving them back: so no other relay has the items before.
func (r *relayRun) claim(ctx context.Context, most int) (items []Item, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	err = r.ask(func() (err error) {
		items, err = r.queue.Claim(ctx, most, r.options.ClaimFor)
		return err
	})
	return items, err
}

// giveBack removes the items that are done from the queue, and puts the others back; also if ctx
// has ended.
func (r *relayRun) giveBack(ctx context.Context, o *outcomes) error {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	var done, later error
	if len(o.done) > 0 {
		if done = r.ask(func() error { return r.queue.Done(ctx, o.done...) }); done == nil {
			r.count(func(c *counted) {
				for _, item := range o.done {
					c.lags, c.MaxLag = c.lags+item.Age, max(c.MaxLag, item.Age)
				}
				c.Done += int64(len(o.done))
			})
		}
	}
	if len(o.back) > 0 {
		later = r.ask(func() error { return r.queue.Later(ctx, o.back...) })
	}
	return errors.Join(done, later)
}

// queueFailed notes a failure of the queue, and returns how long to leave it alone.
func (r *relayRun) queueFailed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	r.count(func(c *counted) { c.QueueErrors++ })
	r.queueFails++
	if r.queueFails == 1 {
		r.log(ctx, slog.LevelWarn, "cacheaside: the queue of a Relay fails, and is tried again", "err", err)
	}
	if r.queueFails >= r.options.AlertAt {
		r.alert(ctx, &r.service, queueOut, r.queueFails, err)
	}
	return retry.Delay(r.queueFails, firstDelay, longestProbe)
}

func (r *relayRun) queueWorks() {
	if r.queueFails > 0 {
		r.log(context.Background(), slog.LevelInfo, "cacheaside: the queue of a Relay works again", "failures", r.queueFails)
	}
	r.queueFails = 0
	r.over(&r.service, queueOut)
}

// rest pauses, until ctx ends at most. idle is a pause until the queue has something to do.
func (r *relayRun) rest(ctx context.Context, pause time.Duration) {
	var woken <-chan error
	if pause == idle {
		pause = r.options.Poll
		if woken = r.woken(ctx); woken != nil {
			pause = betweenLooks
		}
	}
	for until := time.Now().Add(pause); r.wait(ctx, until, woken); {
	}
}

// wait waits until then, until woken receives or ctx ends, or for a job: one that ends, or that has
// not ended in time. It returns true after a job, so that the caller may wait on.
func (r *relayRun) wait(ctx context.Context, until time.Time, woken <-chan error) (job bool) {
	next := until
	for _, w := range r.workers {
		if w.active != nil && r.overdue(w.active).Before(next) {
			next = r.overdue(w.active)
		}
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case err := <-woken:
		r.waiting = nil
		if err != nil { // it panics: the queue is polled from now on
			r.polls = true
			r.queueFailed(ctx, err)
		}
	case j := <-r.ended:
		r.finish(ctx, j)
		return true
	case <-timer.C:
		r.abandon(ctx)
		return next.Before(until)
	}
	return false
}

// woken returns a channel that receives when a queue that can Wait has something to do, or after
// betweenLooks. It returns nil for other queues.
func (r *relayRun) woken(ctx context.Context) <-chan error {
	q, ok := r.queue.(interface{ Wait(context.Context) })
	if !ok || r.polls {
		return nil
	}
	if r.waiting == nil { // else the last one is still running
		woken := make(chan error, 1)
		r.waiting = woken
		go func() {
			ctx, cancel := context.WithTimeout(ctx, betweenLooks)
			defer cancel()
			woken <- r.ask(func() error { q.Wait(ctx); return nil })
		}()
	}
	return r.waiting
}

const betweenLooks = time.Second

// look reads the depth of the queue about once a second. Between two reads it waits for at least 20
// times as long as one takes, which may be long in a large table.
func (r *relayRun) look(ctx context.Context) {
	began := time.Now()
	if began.Before(r.nextLook) || r.queueFails > 0 {
		return
	}
	r.forget()
	limited, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	err := r.ask(func() error {
		depth, err := r.queue.Depth(limited)
		if err == nil {
			r.count(func(c *counted) { c.Depth, c.seen = depth, time.Now() })
		}
		return err
	})
	q, ok := r.queue.(interface {
		tend(ctx context.Context, log func(message string, args ...any)) error
	})
	if ok && err == nil {
		err = q.tend(limited, func(message string, args ...any) { r.log(ctx, slog.LevelWarn, message, args...) })
	}
	if err != nil && ctx.Err() == nil {
		r.count(func(c *counted) { c.QueueErrors++ })
	}
	r.nextLook = time.Now().Add(max(betweenLooks, 20*time.Since(began)))
}

// leave waits a little for jobs that are under way when Run is to end, and puts back the items that
// are not done.
func (r *relayRun) leave(ctx context.Context) {
	var o outcomes
	for _, w := range r.workers {
		for _, t := range w.queue {
			r.settle(ctx, &o, t, cmp.Or(ctx.Err(), error(cacheaside.ErrClosed)))
		}
		w.queue = nil
	}
	_ = r.giveBack(ctx, &o) // else they are due again when their claim has run out
	enough := time.NewTimer(r.options.ClaimFor / 3)
	defer enough.Stop()
	for _, w := range r.workers {
		for w.active != nil {
			select {
			case j := <-r.ended:
				r.finish(ctx, j)
			case <-enough.C:
				return
			}
		}
	}
}
