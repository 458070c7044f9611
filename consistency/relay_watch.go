package consistency

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/sharing"
)

// alarms holds the alarms of a Relay. Each sounds once for everything that fails at the same
// time, and again only after all of that has succeeded. Keys are identified by Key.String, which
// contains a hash.
type alarms [5]limitedlog.Alarm

// Indexes of alarms.
const (
	serviceAlarm = iota // Redis and the queue, which all items need
	failingAlarm        // items that have failed AlertAt times
	badAlarm            // items that can never be handled: they would keep failingAlarm from sounding again
	unknownAlarm        // items whose loader this process does not have; separate for the same reason
	depthAlarm          // the depth of the queue; separate, because items do not need it
)

// Names of the services in serviceAlarm and depthAlarm. They cannot be a Key.String.
const (
	redisOut = "redis"
	queueOut = "queue"
	depthOut = "depth"
)

const (
	// maxSubjects is the maximum number of failing keys that an alarm remembers. If more keys
	// fail, it may sound again before all of them have succeeded.
	maxSubjects = 1000

	// subjectExpiry is the time after its last failure at which an alarm forgets a key, because
	// another relay may have handled it. In that time an item that still fails is tried again about
	// twenty times. Even if ten relays share the queue, this one gets it about twice.
	subjectExpiry = 20 * longestDelay
)

func (a *alarms) init() {
	for i := range a {
		a[i].Together, a[i].Most = true, maxSubjects
	}
}

// expire removes keys that have not failed for subjectExpiry.
func (a *alarms) expire() {
	for i := range a {
		a[i].Forget(subjectExpiry)
	}
}

// callQueue calls the queue, which may be user code: it returns an error after a panic or
// runtime.Goexit. The call has a third of ClaimFor, so that there is time left to handle the
// items and put them back before their claim expires.
func (r *relayRun) callQueue(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	returned := false
	err := <-protect(func() error {
		err := call(ctx)
		returned = true
		return err
	})
	// The error that the call returns may wrap another panic.
	if p, ok := errors.AsType[*cacheaside.PanicError](err); ok && !returned {
		r.count(func(c *counted) { c.Panics++ })
		return &limitedlog.Panic{Who: "consistency: the queue", Value: p.Value, Stack: p.Stack}
	}
	return err
}

const depthInterval = time.Second

// listenPause is the maximum time between two claims of a Relay whose queue listens, and between
// two readings of its depth. The queue's wait returns earlier.
const listenPause = 20 * time.Second

// updateDepth reads the depth of the queue about once a second, less often if many relays share
// it, and lets the queue maintain itself. It waits at least 20 times as long as that takes, which
// may be long in a large table.
func (r *relayRun) updateDepth(ctx context.Context) {
	began := time.Now()
	if began.Before(r.nextDepthRead) || r.queueFails > 0 {
		return
	}
	r.expire()
	err := r.callQueue(ctx, func(ctx context.Context) error {
		depth, err := r.queue.Depth(ctx)
		if err == nil {
			r.count(func(c *counted) { c.Depth, c.depthAt = depth, time.Now() })
		}
		return err
	})
	if r.hooks != nil { // also after an error: Depth may have read the clock of the database
		err = cmp.Or(err, r.callQueue(ctx, func(ctx context.Context) error { return r.hooks.Maintain(ctx, r.log) }))
	}
	r.nextDepthRead = time.Now().Add(max(sharing.Interval(depthInterval, r.relays()), 20*time.Since(began)))
	switch {
	case err == nil:
		r.depthFails = 0
		r.clearAlarm(depthAlarm, depthOut)
	case ctx.Err() == nil:
		r.count(func(c *counted) { c.QueueErrors++ })
		if r.depthFails++; r.depthFails >= r.options.AlertAt {
			if _, sounds := r.alarms[depthAlarm].Failed(depthOut, err); sounds {
				r.notify("cacheaside: a Relay cannot read the depth of its queue and keeps trying", r.depthFails, err)
			}
		}
	}
}

// alert records that subject has failed attempts times, and raises an alert. It reports whether it
// has raised one: it raises none while the alarm already sounds.
func (r *relayRun) alert(ctx context.Context, alarm int, subject string, attempts int, err error) bool {
	if _, sounds := r.alarms[alarm].Failed(subject, err); !sounds {
		return false
	}
	r.nextDepthRead = time.Time{}
	r.updateDepth(ctx)
	r.notify("cacheaside: a Relay cannot handle its items and keeps trying", attempts, err)
	return true
}

func (r *relayRun) notify(message string, attempts int, err error) {
	r.count(func(c *counted) { c.Alerts++ })
	depth := r.Stats().Depth
	r.log.Warn(message, "attempts", attempts,
		"items", depth.Items, "due", depth.Due, "oldest", depth.Oldest, "err", err)
	r.notified.Notify(Alert{Depth: depth, Attempts: attempts, Err: err})
}

func (r *relayRun) alertPanicked(p any) {
	r.count(func(c *counted) { c.Panics++ })
	r.log.Error("cacheaside: RelayOptions.OnAlert panicked", "err", limitedlog.Panicked("RelayOptions.OnAlert", p))
}

// clearAlarm records that subject succeeds, and logs the end of the alarm.
func (r *relayRun) clearAlarm(alarm int, subject string) {
	if _, over := r.alarms[alarm].Works(subject); over {
		r.log.Info("cacheaside: a Relay has recovered")
	}
}
