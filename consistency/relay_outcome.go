package consistency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// A task is a claimed item.
type task struct {
	Item
	claimedAt time.Time // the time just before the claim
}

// outcomes collects claimed items by their outcome.
type outcomes struct {
	completed []Item // items to remove, with their Age at completion
	returned  []Item // items to put back, with their new After, Again and Attempts
}

// record adds the outcome of an item to out. err is why the item is not completed, or nil.
func (r *relayRun) record(ctx context.Context, out *outcomes, t task, err error) {
	item := t.Item
	if item.Attempts > 0 && !errors.Is(err, errUnknownLoader) {
		r.count(func(c *counted) { c.Retried++ })
	}
	switch {
	case err == nil && item.Again > 0:
		r.clearAlarm(failingAlarm, item.Key.String())
		item.After, item.Again, item.Attempts = item.Again, 0, 0
		r.count(func(c *counted) { c.Again++ })
	case err == nil:
		r.clearAlarm(failingAlarm, item.Key.String())
		item.Age += time.Since(t.claimedAt)
		out.completed = append(out.completed, item)
		return
	case errors.Is(err, cacheaside.ErrClosed) && r.cache.Closed(): // a filter or a load function may use another cache
		r.closed = true
		item.After = 0
	case ctx.Err() != nil: // Run ends
		item.After = 0
	case errors.Is(err, errUnknownLoader):
		item = r.unknown(ctx, item, err)
	default:
		item = r.failed(ctx, item, err)
		if r.unknownLoader(&item) != nil {
			// An item of an unknown loader is invalidated only at its first attempt, which has
			// failed: repeat that attempt.
			item.Attempts = t.Attempts
		}
	}
	out.returned = append(out.returned, item)
}

// failed returns a failed item with the time of its next attempt.
func (r *relayRun) failed(ctx context.Context, item Item, err error) Item {
	r.count(func(c *counted) { c.Failed++ })
	item.Attempts++
	switch {
	case item.Key.Check() != nil: // an operator may repair or remove the row
		item.After = longestDelay
		r.count(func(c *counted) { c.Bad++ })
		r.alert(ctx, badAlarm, item.Key.String(), item.Attempts, err)
		return item
	case r.outage > 0: // retried with the next probe, after items that came since: perhaps only this one fails
		item.After = r.nextProbe
	default:
		item.After = retry.Delay(item.Attempts, firstDelay, longestDelay)
	}
	if item.Attempts >= r.options.AlertAt && !r.alarms[serviceAlarm].Sounds() {
		if r.alert(ctx, failingAlarm, item.Key.String(), item.Attempts, err) && r.outage > 0 {
			r.alarms[serviceAlarm].Failed(redisOut, err) // so that the outage raises no second alert
		}
	}
	return item
}

// errUnknownLoader is the error of an item that is left to other relays.
var errUnknownLoader = errors.New("no relay in this process has this loader, whose filter may need the key of a " +
	"new row")

// unknownLoader returns an error if only a process with the item's loader, and so its filter, can
// handle the item. It returns nil if this Relay can handle it.
func (r *relayRun) unknownLoader(item *Item) error {
	if !item.Inserting || !isOne(item.Key) || item.Key.Check() != nil {
		return nil
	}
	if has, _ := r.cache.Loader(item.Key.Loader); has {
		return nil
	}
	return fmt.Errorf("loader %s: %w", item.Key.Loader, errUnknownLoader)
}

// Items of one kind that cannot be handled now become due one after the other, each one pace after
// the one before it: 200 per second. A relay can handle many more, so these items do not delay
// others. The delay is at most longestPaced. It reaches that value if there are 120,000 such items.
const (
	pace           = 5 * time.Millisecond
	longestPaced   = 10 * time.Minute
	unknownAlertAt = 10 * time.Second // the delay with 2,000 items
)

// paced returns the delay of the next item of a kind, and advances next, the earliest time of the
// one after it.
func paced(next *time.Time) time.Duration {
	now := time.Now()
	d := min(max(0, next.Sub(now)), longestPaced)
	*next = now.Add(d + pace)
	return d
}

// unknown returns an item of an unknown loader with its next due time. At first it is due again
// soon, so that another Relay can claim it. After AlertAt attempts its delays grow. Items are never
// due faster than pace. unknown raises an alert when an item has had AlertAt attempts, or when so
// many items wait that the delay reaches unknownAlertAt.
func (r *relayRun) unknown(ctx context.Context, item Item, err error) Item {
	r.count(func(c *counted) { c.Unknown++ })
	item.Attempts++
	wait := paced(&r.unknownDue)
	item.After = max(retry.Delay(item.Attempts-r.options.AlertAt+1, longestProbe, longestDelay), wait)
	if item.Attempts >= r.options.AlertAt || wait >= unknownAlertAt {
		r.alert(ctx, unknownAlarm, "loader "+item.Key.Loader, item.Attempts, err)
	}
	return item
}

// updateOutage records whether Redis is down: if it is, no key could be invalidated because of
// ErrRedis.
func (r *relayRun) updateOutage(ctx context.Context, keys []cacheaside.Key, failed failures) {
	var last error
	for _, k := range keys {
		if err := failed[k]; errors.Is(err, cacheaside.ErrRedis) {
			last = err
			continue
		}
		r.endOutage()
		r.clearAlarm(serviceAlarm, redisOut)
		return
	}
	r.outage++
	r.nextProbe = retry.Delay(r.outage, firstDelay, longestProbe)
	r.count(func(c *counted) { c.Out = true })
	if r.outage >= r.options.AlertAt {
		r.alert(ctx, serviceAlarm, redisOut, r.outage, last)
	}
}

// nothingDue is called when this relay has found no item due for longer than ClaimFor. Items that
// it could not handle would be due again by now, so other relays have handled them. This relay then
// claims whole batches again. nothingDue does not clear the alarm while the queue has items that
// were due for all of that time: other relays may have claimed them before this one each time.
func (r *relayRun) nothingDue() {
	r.endOutage()
	s := r.Stats()
	if after := time.Since(r.lastDue) - s.DepthAge; after > r.options.ClaimFor && s.Depth.Oldest < after {
		r.clearAlarm(serviceAlarm, redisOut)
	}
}

func (r *relayRun) endOutage() {
	r.outage = 0
	r.count(func(c *counted) { c.Out = false })
}

// settle removes completed items from the queue, and puts the others back, even if ctx has
// ended.
func (r *relayRun) settle(ctx context.Context, out *outcomes) error {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	var done, later error
	if len(out.completed) > 0 {
		done = r.callQueue(ctx, func(ctx context.Context) error { return r.queue.Done(ctx, out.completed...) })
		if done == nil {
			r.count(func(c *counted) {
				for _, item := range out.completed {
					c.lags, c.MaxLag = c.lags+item.Age, max(c.MaxLag, item.Age)
				}
				c.Done += int64(len(out.completed))
			})
		}
	}
	if len(out.returned) > 0 {
		later = r.callQueue(ctx, func(ctx context.Context) error { return r.queue.Later(ctx, out.returned...) })
	}
	if r.listens && r.waiting != nil && len(out.returned) > 0 {
		r.stopWaiting() // they may be due earlier than it knows
	}
	return errors.Join(done, later)
}

// queueFailed records a failure of the queue, and returns the pause before the next call.
func (r *relayRun) queueFailed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	r.count(func(c *counted) { c.QueueErrors++ })
	r.queueFails++
	if r.queueFails == 1 {
		r.log.Warn("cacheaside: the queue of a Relay fails and is retried", "err", err)
	}
	if r.queueFails >= r.options.AlertAt {
		r.alert(ctx, serviceAlarm, queueOut, r.queueFails, err)
	}
	return retry.Delay(r.queueFails, firstDelay, longestProbe)
}

func (r *relayRun) queueWorks() {
	if r.queueFails > 0 {
		r.log.Info("cacheaside: the queue of a Relay works again", "failures", r.queueFails)
	}
	r.queueFails = 0
	r.clearAlarm(serviceAlarm, queueOut)
}
