package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// alarms are those that can sound: each once for all that fails at a time, and again only when all
// of that is over. They know it by the keys' hashes, as Key.String has them.
type alarms [4]limitedlog.Alarm

// The alarms.
const (
	serviceAlarm = iota // of Redis and the queue, which all items need
	failingAlarm        // of items that have failed AlertAt times
	badAlarm            // of items that can never be done, which would keep that one from sounding
	unknownAlarm        // of loaders that no Relay here has, likewise
)

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

func (a *alarms) init() {
	for i := range a {
		a[i].Together, a[i].Most = true, aboutAtMost
	}
}

// forget ends what has not failed for long.
func (a *alarms) forget() {
	for i := range a {
		a[i].Forget(overAfter)
	}
}

// ask calls the queue, which may be the user's: a panic, or runtime.Goexit, is an error. The call
// has a third of the life of a claim. So there is time left to do the items that it has claimed and
// give them back before another relay may claim them.
func (r *relayRun) ask(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	err := <-protect(func() error { return call(ctx) })
	if p, ok := errors.AsType[*cacheaside.PanicError](err); ok {
		r.count(func(c *counted) { c.Panics++ })
		return fmt.Errorf("consistency: the queue panicked with a %T, or has called runtime.Goexit", p.Value)
	}
	return err
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
	err := r.ask(ctx, func(ctx context.Context) error {
		depth, err := r.queue.Depth(ctx)
		if err != nil {
			return err
		}
		r.count(func(c *counted) { c.Depth, c.seen = depth, time.Now() })
		if q, ok := r.queue.(interface {
			maintain(ctx context.Context, log *slog.Logger) error
		}); ok {
			return q.maintain(ctx, r.log)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		r.count(func(c *counted) { c.QueueErrors++ })
	}
	r.nextLook = time.Now().Add(max(betweenLooks, 20*time.Since(began)))
}

// alert alerts that something has failed attempts times. It reports whether it did: not while the
// alarm sounds already.
func (r *relayRun) alert(ctx context.Context, alarm int, what string, attempts int, err error) bool {
	if _, sounds := r.alarms[alarm].Failed(what, err); !sounds {
		return false
	}
	r.nextLook = time.Time{}
	r.look(ctx)
	r.notify("cacheaside: a Relay cannot do what it is for, and goes on trying", attempts, err)
	return true
}

func (r *relayRun) notify(message string, attempts int, err error) {
	r.count(func(c *counted) { c.Alerts++ })
	depth := r.Stats().Depth
	r.log.Warn(message, "attempts", attempts, "items", depth.Items, "due", depth.Due, "oldest", depth.Oldest, "err", err)
	r.notified.Tell(Alert{Depth: depth, Attempts: attempts, Err: err})
}

func (r *relayRun) alertPanicked(p any) {
	r.count(func(c *counted) { c.Panics++ })
	r.log.Error("cacheaside: RelayOptions.OnAlert panicked", "with", fmt.Sprintf("%T", p))
}

// over notes that something works. It logs the end of what was alerted.
func (r *relayRun) over(alarm int, what string) {
	if _, over := r.alarms[alarm].Works(what); over {
		r.log.Info("cacheaside: what a Relay could not do is done")
	}
}
