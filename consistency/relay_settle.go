package consistency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// task is a claimed item.
type task struct {
	Item
	claimed time.Time // just before it was
}

// outcomes collects claimed items by what happens to them.
type outcomes struct {
	done []Item // their Age is of the moment when they were done
	back []Item // as they are to be put back
}

// settle adds what becomes of an item. err is why it is not done, or nil.
func (r *relayRun) settle(ctx context.Context, o *outcomes, t task, err error) {
	item := t.Item
	if item.Attempts > 0 && !errors.Is(err, errUnknownLoader) {
		r.count(func(c *counted) { c.Retried++ })
	}
	switch {
	case err == nil && item.Again > 0:
		r.over(failingAlarm, item.Key.String())
		item.After, item.Again, item.Attempts = item.Again, 0, 0
		r.count(func(c *counted) { c.Again++ })
	case err == nil:
		r.over(failingAlarm, item.Key.String())
		item.Age += time.Since(t.claimed)
		o.done = append(o.done, item)
		return
	case errors.Is(err, cacheaside.ErrClosed) && r.cache.Closed(): // a filter or a load function may use another cache
		r.closed = true
		item.After = 0
	case ctx.Err() != nil: // it had no time to finish
		item.After = 0
	case errors.Is(err, errUnknownLoader):
		item = r.unknown(ctx, item, err)
	default:
		item = r.failed(ctx, item, err)
		if r.unknownLoader(&item) != nil {
			item.Attempts = t.Attempts // an item of an unknown loader is invalidated at its first attempt only, and this one was not
		}
	}
	o.back = append(o.back, item)
}

// failed returns an item that has failed with the time of its next attempt.
func (r *relayRun) failed(ctx context.Context, item Item, err error) Item {
	r.count(func(c *counted) { c.Failed++ })
	item.Attempts++
	switch {
	case item.Key.Check() != nil: // an operator may repair it, or remove it
		item.After = longestDelay
		r.count(func(c *counted) { c.Bad++ })
		r.alert(ctx, badAlarm, item.Key.String(), item.Attempts, err)
		return item
	case r.outage > 0: // with the next probe; items that came meanwhile are tried first, because perhaps only this one fails
		item.After = r.nextProbe
	default:
		item.After = retry.Delay(item.Attempts, firstDelay, longestDelay)
	}
	if item.Attempts >= r.options.AlertAt && !r.alarms[serviceAlarm].Sounds() {
		if r.alert(ctx, failingAlarm, item.Key.String(), item.Attempts, err) && r.outage > 0 {
			r.alarms[serviceAlarm].Failed(redisOut, err) // so that this is not alerted, too
		}
	}
	return item
}

// errUnknownLoader is why an item is left to other relays.
var errUnknownLoader = errors.New("no relay here has this loader, and its filter may need a new row")

// unknownLoader returns an error if an item is for the Relay of a process that has its loader, and
// so its filter. It returns nil if this Relay can do the item.
func (r *relayRun) unknownLoader(item *Item) error {
	if !item.Admit || item.Key.All || item.Key.Check() != nil {
		return nil
	}
	if has, _ := r.cache.Loader(item.Key.Loader); has {
		return nil
	}
	return fmt.Errorf("loader %s: %w", item.Key.Loader, errUnknownLoader)
}

// pace limits how many items of a kind that cannot be done now become due in a second: 200. That is
// a small part of what a relay can do, so that they do not delay others. The delay grows by pace
// with each such item, up to longestPaced: with 120,000 of them.
const (
	pace           = 5 * time.Millisecond
	longestPaced   = 10 * time.Minute
	unknownAlertAt = 10 * time.Second // reached with 2,000
)

// paced returns when the next item of a kind may be due. next is the time of the one after it.
func paced(next *time.Time) time.Duration {
	now := time.Now()
	d := min(max(0, next.Sub(now)), longestPaced)
	*next = now.Add(d + pace)
	return d
}

// unknown returns an item of an unknown loader with its next due time: soon, so that another Relay
// gets it; later and later after its alert; and no sooner than pace permits. It alerts when
// an item has come back AlertAt times, or when there are so many that most have to wait for long.
func (r *relayRun) unknown(ctx context.Context, item Item, err error) Item {
	r.count(func(c *counted) { c.Unknown++ })
	item.Attempts++
	wait := paced(&r.nextUnknown)
	item.After = max(retry.Delay(item.Attempts-r.options.AlertAt+1, longestProbe, longestDelay), wait)
	if item.Attempts >= r.options.AlertAt || wait >= unknownAlertAt {
		r.alert(ctx, unknownAlarm, "loader "+item.Key.Loader, item.Attempts, err)
	}
	return item
}

// judgeRedis notes whether Redis is out of reach: no key could be invalidated because of it.
func (r *relayRun) judgeRedis(ctx context.Context, keys []cacheaside.Key, failed keyErrors) {
	var last error
	for _, k := range keys {
		if err := failed[k]; errors.Is(err, cacheaside.ErrRedis) {
			last = err
			continue
		}
		r.tryAll()
		r.over(serviceAlarm, redisOut)
		return
	}
	r.outage++
	r.nextProbe = retry.Delay(r.outage, firstDelay, longestProbe)
	r.count(func(c *counted) { c.Out = true })
	if r.outage >= r.options.AlertAt {
		r.alert(ctx, serviceAlarm, redisOut, r.outage, last)
	}
}

// nothingDue is called when nothing was due for so long that other relays must have done the items
// that this one could not do, or they would have come back. This relay then tries all items that
// come. But it does not take Redis for working while the queue has items that were there then:
// the others may only have been quicker each time.
func (r *relayRun) nothingDue() {
	r.tryAll()
	s := r.Stats()
	if after := time.Since(r.lastDue) - s.DepthAge; after > r.options.ClaimFor && s.Depth.Oldest < after {
		r.over(serviceAlarm, redisOut)
	}
}

func (r *relayRun) tryAll() {
	r.outage = 0
	r.count(func(c *counted) { c.Out = false })
}

// giveBack removes the items that are done from the queue, and puts the others back; also if ctx
// has ended.
func (r *relayRun) giveBack(ctx context.Context, o *outcomes) error {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	var done, later error
	if len(o.done) > 0 {
		if done = r.ask(ctx, func(ctx context.Context) error { return r.queue.Done(ctx, o.done...) }); done == nil {
			r.count(func(c *counted) {
				for _, item := range o.done {
					c.lags, c.MaxLag = c.lags+item.Age, max(c.MaxLag, item.Age)
				}
				c.Done += int64(len(o.done))
			})
		}
	}
	if len(o.back) > 0 {
		later = r.ask(ctx, func(ctx context.Context) error { return r.queue.Later(ctx, o.back...) })
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
		r.log.Warn("cacheaside: the queue of a Relay fails, and is tried again", "err", err)
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
	r.over(serviceAlarm, queueOut)
}
