package canal

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// A Consumer applies the changes that a Source delivers to caches and filters. It processes each
// change at least once, and the changes of a row in order. It saves the position after the
// invalidation, so that changes in progress at a kill are processed again.
type Consumer struct {
	cache      *cacheaside.Cache
	source     Source
	checkpoint Checkpoint
	bindings   []Binding
	options    Options
	of         map[event.Table][]*Binding
	need       map[event.Table][]string
	loaders    []cacheaside.Key // all keys of each bound loader
	handles    bool             // at least one Binding has a handler
	outbox     *outbox          // nil without BindOutbox
	presence   *presence
	gap        bool // the position was lost, and the missed changes are not repaired; guarded by run
	// the Source has delivered a batch, to this Consumer or to another one with the Checkpoint;
	// guarded by run
	worked  bool
	delayed bool // the Source could not be read because of a setting, so all keys may be stale; guarded by run

	run sync.Mutex
	*alarm
}

// NewConsumer returns a Consumer of source. cache is the Cache of the bound loaders. No other
// Consumer may use source or checkpoint at the same time, unless Options.Locker prevents
// concurrent use. A nil checkpoint is for Sources without positions, such as brokers, which keep
// their own. With any other Source and a nil checkpoint, the Consumer starts as after a gap
// whenever it becomes active. NewConsumer does no I/O; Run does.
func NewConsumer(
	cache *cacheaside.Cache, source Source, checkpoint Checkpoint, bindings []Binding, options *Options,
) (*Consumer, error) {
	if cache == nil || source == nil {
		return nil, errors.New("canal: the cache, or the source, is nil")
	}
	o := options.withDefaults()
	if err := cmp.Or(o.check(), checkBindings(bindings, o)); err != nil {
		return nil, wording.Errorf("canal: %w", err)
	}
	c := &Consumer{cache: cache, source: source, checkpoint: checkpoint, options: o, of: map[event.Table][]*Binding{},
		need: map[event.Table][]string{}}
	c.alarm = newAlarm(&c.options, writeside.Of(cache).Closed)
	for _, b := range bindings {
		if b.outbox == nil {
			c.bindings = append(c.bindings, b)
		} else if err := c.bindOutbox(b.outbox); err != nil {
			return nil, wording.Errorf("canal: %w", err)
		}
	}
	all := newWork(0)
	for i := range c.bindings {
		b := &c.bindings[i]
		c.of[b.table] = append(c.of[b.table], b)
		c.need[b.table] = append(c.need[b.table], b.columns...)
		if b.whole != nil {
			b.whole(all)
		}
		c.handles = c.handles || b.handle != nil
	}
	c.options.Name = cmp.Or(c.options.Name, c.lockName())
	c.presence = newPresence(c.bindings)
	c.loaders = slices.Collect(maps.Keys(all.keys))
	return c, nil
}

// invalidateAll adds all keys of all bound loaders to w, and of all loaders if there is an outbox.
func (c *Consumer) invalidateAll(w *work) {
	c.invalidateOutbox(w)
	for _, k := range c.loaders {
		w.invalidate(k)
	}
}

// Stats returns the figures of the Consumer. It is safe for concurrent use.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	s, since, upTo := c.stats, c.since, c.upTo
	c.mu.Unlock()
	s.MissingTables, s.NoChanges = c.presence.absences(c.bindings)
	if s.WaitingFor != "" {
		s.Busy = time.Since(since)
	}
	s.Retained = -1
	if r, ok := c.source.(Retainer); ok {
		s.Retained = r.Retained()
	}
	s.Lag = -1
	if !upTo.IsZero() {
		s.Lag = max(time.Since(upTo), 0)
	}
	return s
}

// idle resets the state of the active Consumer. Failures and the lag are reported by the process
// that becomes active next.
func (c *Consumer) idle() {
	c.update(func(s *Stats) { s.Active, c.upTo = false, time.Time{} })
	c.presence.set(nil, true)
	c.presence.setIncomplete(map[event.Table]string{})
	if c.options.Locker != nil {
		c.failing.Forget(0)
		c.setups = nil
	}
}

// Health returns an error if the caches may be behind the database for longer than within. Use it
// in a health check. It returns an error if Run does not run, if a dependency is failing, or if the
// lag is greater than within. It also returns an error if one call, such as that of a handler, has
// been running for longer than within; the error names the call. A bound table that is missing or
// incomplete (Stats.MissingTables) is an error too, because changes of it do not arrive. Health
// returns nil while the Consumer waits for its lock, because another Consumer is active then.
func (c *Consumer) Health(within time.Duration) error {
	s := c.Stats()
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	part, failure := c.failing.Longest()
	switch {
	case !running:
		return errors.New("canal: the Consumer does not run")
	case s.Busy > within:
		return fmt.Errorf("canal: %s has not returned for %v, and blocks the Consumer", s.WaitingFor,
			s.Busy.Round(time.Millisecond))
	case part != "":
		return wording.Errorf("canal: %s: %w", part, failure.Err)
	case !s.Active:
		return nil
	case s.Lag > within:
		return fmt.Errorf("canal: %v behind the database", s.Lag.Round(time.Millisecond))
	case len(s.MissingTables) > 0:
		return errors.New("canal: " + c.presence.kind() + ": " + s.MissingTables[0])
	case s.Lag < 0:
		return errors.New("canal: the source has not delivered a batch yet")
	}
	return nil
}
