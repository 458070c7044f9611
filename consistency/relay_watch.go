package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// alarms are those that can sound: each once for all that fails at a time, and again only when all
// of that is over. They know it by the keys' hashes, as Key.String has them.
type alarms struct {
	service limitedlog.Alarm // of Redis and the queue, which all items need
	failing limitedlog.Alarm // of items that have failed AlertAt times
	bad     limitedlog.Alarm // of items that can never be done, which would keep that one from sounding
	strange limitedlog.Alarm // of loaders that no Relay here has, likewise
}

func (a *alarms) init() {
	for _, of := range a.all() {
		of.Together, of.Most = true, aboutAtMost
	}
}

func (a *alarms) all() []*limitedlog.Alarm {
	return []*limitedlog.Alarm{&a.service, &a.failing, &a.bad, &a.strange}
}

// forget ends what has not failed for long.
func (a *alarms) forget() {
	for _, of := range a.all() {
		of.Forget(overAfter)
	}
}

// Names for what all keys need; no Key.String is one of them.
const (
	redisOut = "redis"
	queueOut = "queue"
)

const (
	// aboutAtMost is of how much an alarm knows what it is about. If more than that fails, it may
	// sound again before all of it is over.
	aboutAtMost = 1000

	// overAfter is how long after it has failed last something is not known to fail any more:
	// another relay may have done it. If it still failed it would have come back twenty times, and
	// to each of ten relays about twice.
	overAfter = 20 * longestDelay
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

// alert tells that something has failed so often. It answers whether it did: nobody is told again
// of what the alarm sounds for.
func (r *relayRun) alert(ctx context.Context, of *limitedlog.Alarm, what string, attempts int, err error) bool {
	if _, tell := of.Failed(what, err); !tell {
		return false
	}
	r.nextLook = time.Time{}
	r.look(ctx)
	r.notify(ctx, "cacheaside: a Relay cannot do what it is for, and goes on trying", Alert{Depth: r.depth(), Attempts: attempts, Err: err})
	return true
}

func (r *relayRun) notify(ctx context.Context, message string, a Alert) {
	r.count(func(c *counted) { c.Alerts++ })
	r.log(ctx, slog.LevelWarn, message, "attempts", a.Attempts, "items", a.Depth.Items, "due", a.Depth.Due, "oldest", a.Depth.Oldest, "err", a.Err)
	r.notified.Tell(a)
}

func (r *relayRun) alertPanicked(p any) {
	r.count(func(c *counted) { c.Panics++ })
	r.log(context.Background(), slog.LevelError, "cacheaside: RelayOptions.OnAlert panicked", "with", fmt.Sprintf("%T", p))
}

func (r *relayRun) over(of *limitedlog.Alarm, what string) {
	if _, over := of.Works(what); over {
		r.log(context.Background(), slog.LevelInfo, "cacheaside: what a Relay could not do is done")
	}
}

// log logs. It survives a panic of the user's handler.
func (r *relayRun) log(ctx context.Context, level slog.Level, message string, args ...any) {
	defer func() {
		if recover() != nil {
			r.count(func(c *counted) { c.Panics++ })
		}
	}()
	r.options.Logger.Log(ctx, level, message, args...)
}
