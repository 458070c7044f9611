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
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Consumer makes caches and filters follow the changes that a Source tells of: each at least once,
// those of a row in their order. First it invalidates, then it saves the position, so that changes
// that were under way at a kill are done again.
type Consumer struct {
	cache      *cacheaside.Cache
	source     Source
	checkpoint Checkpoint
	bindings   []Binding
	options    Options
	of         map[event.Table][]*Binding
	need       map[event.Table][]string
	loaders    []cacheaside.Key // all keys of each that is bound
	handles    bool             // some bindings are handlers
	presence   *presence
	gap        bool // the position was lost, and what was missed is not repaired yet; guarded by run

	run sync.Mutex
	*alarm
}

// NewConsumer makes a Consumer of source; cache is that of the bound loaders. No other Consumer may
// use source or the checkpoint at the same time, unless Options.Locker keeps them apart. A nil
// checkpoint is for Sources without positions, such as brokers, which keep their own; with another
// Source each tenure then begins as after a gap. NewConsumer does no I/O; Run does.
func NewConsumer(cache *cacheaside.Cache, source Source, checkpoint Checkpoint, bindings []Binding, options *Options) (*Consumer, error) {
	if cache == nil || source == nil {
		return nil, errors.New("canal: the cache, or the source, is nil")
	}
	o := options.withDefaults()
	if err := cmp.Or(o.check(), checkBindings(bindings, o)); err != nil {
		return nil, fmt.Errorf("canal: %w", err)
	}
	c := &Consumer{cache: cache, source: source, checkpoint: checkpoint, bindings: slices.Clone(bindings), options: o, of: map[event.Table][]*Binding{}, need: map[event.Table][]string{}}
	c.alarm = newAlarm(&c.options, writeside.Of(cache).Closed)
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
	c.presence = newPresence(c.bindings)
	c.loaders = slices.Collect(maps.Keys(all.keys))
	return c, nil
}

// whole adds all keys of all loaders to w.
func (c *Consumer) whole(w *work) {
	for _, k := range c.loaders {
		w.invalidate(k)
	}
}

// Stats may be called at any time.
func (c *Consumer) Stats() Stats {
	c.mu.Lock()
	s, since, upTo := c.stats, c.since, c.upTo
	c.mu.Unlock()
	s.MissingTables, s.NoChanges = c.presence.absences(c.bindings)
	if s.Doing != "" {
		s.Busy = time.Since(since)
	}
	s.Lag = -1
	if !upTo.IsZero() {
		s.Lag = max(time.Since(upTo), 0)
	}
	return s
}

// idle is when a tenure has ended: what fails, and how far it has come, is for another to say.
func (c *Consumer) idle() {
	c.note(func(s *Stats) { s.Active, c.upTo = false, time.Time{} })
	c.presence.set(nil, true)
	if c.options.Locker != nil {
		c.ills.Forget(0)
	}
}

// Health returns why caches may be behind the database for longer than within, for a probe:
// something has been running for longer, as a handler that hangs, which the error names; something
// has been failing, or the lag is greater, or Run does not run; or a bound table is missing
// (Stats.MissingTables), for no change of it can come. Health returns nil for a Consumer that waits
// for its lock, as another does the work then.
func (c *Consumer) Health(within time.Duration) error {
	s := c.Stats()
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	what, failure := c.ills.Longest()
	switch {
	case !running:
		return errors.New("canal: it does not run")
	case s.Busy > within:
		return fmt.Errorf("canal: %s has not returned for %v, and blocks the Consumer", s.Doing, s.Busy.Round(time.Millisecond))
	case what != "":
		return fmt.Errorf("canal: %s: %w", what, failure.Err)
	case !s.Active:
		return nil
	case s.Lag > within:
		return fmt.Errorf("canal: %v behind the database", s.Lag.Round(time.Millisecond))
	case len(s.MissingTables) > 0:
		return errors.New("canal: no such table: " + s.MissingTables[0])
	case s.Lag < 0:
		return errors.New("canal: the source has not begun yet")
	}
	return nil
}
