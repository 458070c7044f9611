package consistency

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// RelayStats counts what a Relay has done since it was made. Its fields are read one after the
// other, so they may differ by what happened meanwhile.
type RelayStats struct {
	Done        int64 // items that are done, and out of the queue
	Again       int64 // times that one was done for the first of two times (Item.Again)
	Failed      int64 // attempts at an item that failed: as many as it took
	Retried     int64 // attempts at items that had failed before
	NotReloaded int64 // keys that were to be reloaded, and were invalidated since they could not be
	Bad         int64 // of Failed, attempts at items whose Key is none (Key.Check): somebody else has written them, and has to repair or remove them
	Unknown     int64 // attempts at items that are for other relays, as this one has not got their loaders (Item.Admit)
	QueueErrors int64 // calls of the queue that failed
	Alerts      int64 // alerts, told to OnAlert if there is one
	Panics      int64 // times that OnAlert, the Logger or the queue panicked

	// Ended says that Run has ended though nobody has asked it to: the cache was closed.
	Ended bool

	// Out says that all that this relay has tried last has failed for want of Redis. Where other
	// relays have done the rest, Out stays true until nothing was due for RelayOptions.ClaimFor.
	Out bool

	// Lag is the mean time that items had been in the queue when they were done, including the time
	// that they were told to wait. MaxLag is the longest.
	Lag, MaxLag time.Duration

	// Depth is what is in the queue, for all relays together, as it was DepthAge ago. A Relay that
	// runs looks about once a second.
	Depth    Depth
	DepthAge time.Duration
}

// Stats returns the counts so far. It asks nobody.
func (r *Relay) Stats() RelayStats {
	c := &r.counters
	s := RelayStats{
		Done: c.done.Load(), Again: c.again.Load(), Failed: c.failed.Load(), Retried: c.retried.Load(), NotReloaded: c.notReloaded.Load(), Bad: c.bad.Load(), Unknown: c.unknown.Load(),
		QueueErrors: c.queueErrors.Load(), Alerts: c.alerts.Load(), Panics: c.panics.Load(), Out: c.out.Load(), Ended: c.ended.Load(), MaxLag: time.Duration(c.maxLag.Load()) * time.Microsecond,
	}
	if s.Done > 0 {
		s.Lag = time.Duration(c.lag.Load()/s.Done) * time.Microsecond
	}
	if seen := c.seen.Load(); seen != nil {
		s.Depth, s.DepthAge = seen.Depth, time.Since(seen.at)
	}
	return s
}

type relayCounters struct {
	done, again, failed, retried, notReloaded, bad, unknown, queueErrors, alerts, panics, lag, maxLag atomic.Int64

	out   atomic.Bool
	ended atomic.Bool
	seen  atomic.Pointer[seen]
}

// seen is a look at the queue.
type seen struct {
	Depth
	at time.Time
}

// finished counts items that are done, by how long they were in the queue. Only the goroutine of
// Run calls it.
func (c *relayCounters) finished(lags []time.Duration) {
	for _, d := range lags {
		lag := d.Microseconds() // of nanoseconds the sum could overflow within weeks
		c.lag.Add(lag)
		c.maxLag.Store(max(c.maxLag.Load(), lag))
	}
	c.done.Add(int64(len(lags)))
}

const betweenLooks = time.Second

// look sees what is in the queue, if it has not just done so. Twenty times as long as it takes is
// between two looks at least, for in a large table it is not cheap.
func (s *shift) look(ctx context.Context) {
	began := time.Now()
	if began.Before(s.nextLook) || s.queueFails > 0 {
		return
	}
	s.forget()
	looking, cancel := context.WithTimeout(ctx, s.options.ClaimFor/3)
	defer cancel()
	var depth Depth
	err := s.ask(func() (err error) {
		depth, err = s.queue.Depth(looking)
		return err
	})
	now := time.Now()
	defer func() { s.nextLook = now.Add(max(betweenLooks, 20*time.Since(began))) }()
	switch {
	case err == nil:
		s.counters.seen.Store(&seen{depth, now})
		s.tend(looking)
	case ctx.Err() == nil:
		s.counters.queueErrors.Add(1)
	}
}

// tend looks after a queue that needs it, and tells what was found.
func (s *shift) tend(ctx context.Context) {
	q, ok := s.queue.(interface {
		tend(context.Context) (repaired int64, err error)
		unclaimed() []string
	})
	if !ok {
		return
	}
	repaired, err := q.tend(ctx)
	if repaired > 0 {
		if time.Since(s.aheadTold) > repairAgain {
			s.log(ctx, slog.LevelWarn, "cacheaside: items of the outbox were put by a clock that is ahead of the database's, and waited too long: has the clock gone back, or do the clocks of two servers differ?", "items", repaired)
		}
		s.aheadTold = time.Now()
	}
	if err != nil && ctx.Err() == nil {
		s.counters.queueErrors.Add(1)
	}
	if names := q.unclaimed(); len(names) > 0 {
		s.log(ctx, slog.LevelWarn, "cacheaside: nobody claims what has long been due in other namespaces of the outbox: is their application's Relay running?", "namespaces", shownNames(names))
	}
}

// shownNames returns names for the log. They come from the table, so they may be anything.
func shownNames(names []string) []string {
	shown := make([]string, len(names))
	for i, name := range names {
		shown[i] = strconv.QuoteToASCII(name)
		if name == "" {
			shown[i] = "none (put by a program that is older than namespaces)"
		}
		if keys.ValidName(name) {
			shown[i] = name
		}
	}
	return shown
}

func (c *relayCounters) depth() Depth {
	if seen := c.seen.Load(); seen != nil {
		return seen.Depth
	}
	return Depth{}
}
