package canal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// gapPause is the longest pause between calls of OnGap while another call rebuilds its filter.
const gapPause = time.Second

// do carries out batches.
func (s *session) do(ctx context.Context, batches []event.Batch) error {
	n := 0
	for i := range batches {
		n += len(batches[i].Changes)
	}
	w := newWork(n)
	gap := false
	for i := range batches {
		s.setMissing(batches[i].Missing, false)
		if batches[i].Malformed != nil && len(batches[i].Changes) == 0 { // it may be the change of any row
			s.whole(w)
		}
		for j := range batches[i].Changes {
			c := &batches[i].Changes[j]
			s.setMissing(s.presence.notice(event.Table{Schema: c.Schema, Name: c.Table}), false)
			s.understand(w, c)
			gap = gap || s.opensGap(c)
		}
	}
	if err := s.insist(ctx, "redis", func(ctx context.Context) error { return w.try(ctx, s.alarm, s.cache) }); err != nil {
		return err
	}
	if gap && s.options.OnGap != nil {
		if err := s.insist(ctx, "gap", s.onGap); err != nil {
			return err
		}
	}
	for _, p := range w.parked { // when what can be done is done
		if err := s.park(ctx, p.Parked, p.cause); err != nil {
			return err
		}
	}
	for _, b := range batches {
		if err := s.finish(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// setMissing records which tables are missing, and alerts those that were not before. all says that
// no others are.
func (c *Consumer) setMissing(tables map[event.Table]string, all bool) {
	if len(tables) == 0 && !all {
		return
	}
	for t, why := range c.presence.set(tables, all) {
		for _, b := range c.of[t] {
			c.alert("missing table", b.name, errors.New(b.title()+": "+why))
		}
	}
}

// finish parks and handles what is in a batch whose keys are invalidated, and acknowledges it.
func (s *session) finish(ctx context.Context, b event.Batch) error {
	if b.Malformed != nil {
		s.note(func(s *Stats) { s.Malformed++ })
		cause := cmp.Or(b.Malformed.Err, errMalformed)
		if err := s.park(ctx, parking.Parked{Message: b.Malformed.Message, Reason: cause.Error()}, cause); err != nil {
			return err
		}
	}
	if s.handles {
		for i := range b.Changes {
			if err := s.handle(ctx, &b.Changes[i]); err != nil {
				return err
			}
		}
	}
	s.note(func(stats *Stats) {
		if !b.Time.IsZero() {
			s.upTo = b.Time
		}
		stats.Batches++
		stats.Changes += int64(len(b.Changes))
		stats.Position = cmp.Or(b.Position, stats.Position)
	})
	if len(b.Changes) > 0 || b.Malformed != nil {
		s.news++
	}
	if b.Position != "" {
		s.at = b.Position
		s.progress.Store(&progress{s.at, s.news})
	}
	if b.Ack != nil {
		if err := guarded(ctx, func(context.Context) error { b.Ack(); return nil }); err != nil {
			return fmt.Errorf("Batch.Ack: %w", err)
		}
	}
	return nil
}

// opensGap tells whether a change may have brought rows that filters were not told of, and alerts
// what could not be read.
func (s *session) opensGap(c *event.Change) bool {
	if c.Kind != event.Replace {
		return false
	}
	bound := s.bound(c)
	if c.Unread != nil && len(bound) > 0 {
		s.note(func(s *Stats) { s.Misunderstood++ })
		s.alert("not understood", "", fmt.Errorf("%v: %w", *c, c.Unread))
	}
	return len(bound) > 0
}

// bound are the Bindings that a change is of: those of its table, or of all that it may have
// changed.
func (c *Consumer) bound(change *event.Change) []*Binding {
	if !ofWhole(change) {
		return c.of[event.Table{Schema: change.Schema, Name: change.Table}]
	}
	var all []*Binding
	for i := range c.bindings {
		b := &c.bindings[i]
		if (change.Schema == "" || change.Schema == b.table.Schema) && (change.Table == "" || change.Table == b.table.Name) {
			all = append(all, b)
		}
	}
	return all
}

// understand adds to w what a change asks for.
func (s *session) understand(w *work, c *event.Change) {
	for _, b := range s.bound(c) {
		if b.row == nil {
			continue
		}
		if ofWhole(c) {
			b.whole(w)
			continue
		}
		err := b.understand(w, c)
		if err == nil {
			continue
		}
		s.note(func(s *Stats) { s.Misunderstood++ })
		s.alert("not understood", b.name, err)
		if b.filter != nil {
			w.parked = append(w.parked, unknown{parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err})
			continue
		}
		b.whole(w)
	}
}

// onGap calls Options.OnGap, which may take long.
//
// While another call rebuilds the filter, such as one of Maintain, it waits, and then calls OnGap
// again: that rebuild may have read the table before the Source listened.
func (s *session) onGap(ctx context.Context) error {
	return s.atLength("Options.OnGap", func() error {
		for n := 1; ; n++ {
			err := s.options.OnGap(ctx)
			if !errors.Is(err, bloom.ErrRebuilding) {
				return err
			}
			if n == 1 {
				s.options.Logger.Info("canal: Options.OnGap waits for a rebuild that is under way", "error", err)
			}
			if err := retry.Sleep(ctx, retry.Delay(n, firstPause, gapPause)); err != nil {
				return err
			}
		}
	})
}

// handle gives a change to its handlers.
func (s *session) handle(ctx context.Context, c *event.Change) error {
	for _, b := range s.bound(c) {
		if b.handle == nil {
			continue
		}
		if err := s.handleBy(ctx, b, c); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) handleBy(ctx context.Context, b *Binding, c *event.Change) (err error) {
	for n := 1; ; n++ {
		if ctx.Err() != nil { // another may be at later changes of this row
			return ctx.Err()
		}
		if err = s.during(b.title(), b.name, func() error {
			return guarded(ctx, func(ctx context.Context) error { return b.handle(ctx, *c) })
		}); err == nil {
			s.note(func(s *Stats) { s.Handled++ })
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.note(func(s *Stats) { s.HandlerErrors++ })
		if n >= s.options.Attempts {
			return s.park(ctx, parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err)
		}
		_ = retry.Sleep(ctx, retry.Delay(n, firstPause, longPause))
	}
}

// checkParking tells at the start that a Parking does not work, and not when it is needed, which
// stops everything. Those that can tell have a Check.
func (c *Consumer) checkParking(ctx context.Context) {
	p, can := c.options.Parking.(interface {
		Check(ctx context.Context) error
	})
	if !can {
		return
	}
	limited, cancel := context.WithTimeout(ctx, longPause)
	defer cancel()
	if err := guarded(limited, p.Check); err != nil && ctx.Err() == nil {
		c.alert("parking", "", err)
	}
}

// park insists on it: what is not parked would be lost in silence.
func (s *session) park(ctx context.Context, p parking.Parked, cause error) error {
	p.Time = time.Now()
	if s.options.Parking == nil { // of a message: bindings that park need one
		return fmt.Errorf("%w: messages that the source cannot read need Options.Parking: %w", ErrSetup, cause)
	}
	if err := s.insist(ctx, "parking", func(ctx context.Context) error {
		return s.during("Options.Parking", p.Binding, func() error { return s.options.Parking.Park(ctx, p) })
	}); err != nil {
		return err
	}
	s.note(func(s *Stats) { s.Parked++ })
	s.alert("parked", p.Binding, cause)
	return nil
}
