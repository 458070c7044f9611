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
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// gapPause is the maximum delay between calls of OnGap while another call rebuilds its filter.
const gapPause = time.Second

// process invalidates the caches for all batches together, and then finishes each batch in order.
func (s *session) process(ctx context.Context, batches []event.Batch) error {
	n := 0
	for i := range batches {
		n += len(batches[i].Changes) + len(batches[i].Messages)
	}
	w := newWork(n)
	gap := false
	for i := range batches {
		s.setMissing(batches[i].Missing, false)
		s.setIncomplete(batches[i].Incomplete)
		if batches[i].Malformed != nil && len(batches[i].Changes) == 0 { // it may concern any row
			s.invalidateAll(w)
		}
		for j := range batches[i].Changes {
			c := &batches[i].Changes[j]
			s.setMissing(s.presence.recordChange(event.Table{Schema: c.Schema, Name: c.Table}), false)
			gap = s.addWork(w, c) || s.opensGap(c) || gap
			if s.affectsOutbox(c) {
				s.invalidateOutbox(w)
			}
		}
		for j := range batches[i].Messages {
			gap = s.addMessage(w, &batches[i].Messages[j]) || gap
		}
	}
	if err := s.retryUntilDone(ctx, AlertRedis, func(ctx context.Context) error {
		return w.try(ctx, s.alarm, s.cache)
	}); err != nil {
		return err
	}
	if gap && s.options.OnGap != nil {
		if err := s.retryUntilDone(ctx, AlertGap, s.onGap); err != nil {
			return err
		}
	}
	for _, p := range w.parked { // after everything that could be processed
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

// setMissing records missing tables, and raises an alert for those that were not recorded with
// the same reason. If all is set, no other tables are missing.
func (c *Consumer) setMissing(tables map[event.Table]string, all bool) {
	if len(tables) == 0 && !all {
		return
	}
	for t, reason := range c.presence.set(tables, all) {
		for _, b := range c.of[t] {
			c.alert(AlertMissingTable, b.name, errors.New(b.title()+": "+reason))
		}
	}
}

// setIncomplete records the incomplete tables, unless tables is nil, and raises an alert for those
// that were not recorded with the same reason.
func (c *Consumer) setIncomplete(tables map[event.Table]string) {
	if tables == nil {
		return
	}
	for t, why := range c.presence.setIncomplete(tables) {
		for _, b := range c.of[t] {
			c.alert(AlertIncompleteTable, b.name, errors.New(b.title()+": "+why))
		}
	}
}

// finish parks the malformed message of a batch, calls the handlers with its changes, and
// acknowledges it. The keys of the batch are already invalidated.
func (s *session) finish(ctx context.Context, b event.Batch) error {
	if b.Malformed != nil {
		s.update(func(s *Stats) { s.Malformed++ })
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
	s.update(func(stats *Stats) {
		if !b.Time.IsZero() {
			s.upTo = b.Time
		}
		stats.Batches++
		stats.Changes += int64(len(b.Changes))
		stats.Messages += int64(len(b.Messages))
		stats.Position = cmp.Or(b.Position, stats.Position)
	})
	if len(b.Changes) > 0 || len(b.Messages) > 0 || b.Malformed != nil {
		s.processed++
	}
	if b.Position != "" {
		s.position = b.Position
		s.progress.Store(&progress{s.position, s.processed})
		if s.checkpoint == nil {
			s.release(s.position)
		}
	}
	if b.Ack != nil {
		if err := guarded(ctx, func(context.Context) error { b.Ack(); return nil }); err != nil {
			return fmt.Errorf("Batch.Ack: %w", err)
		}
	}
	return nil
}

// opensGap reports whether a change replaces a bound table, so that filters may have missed rows.
// It raises an alert if the change could not be read.
func (s *session) opensGap(c *event.Change) bool {
	if c.Kind != event.Replace {
		return false
	}
	bound := s.bindingsOf(c)
	if c.Unread != nil && len(bound) > 0 {
		s.update(func(s *Stats) { s.Misunderstood++ })
		s.alert(AlertNotUnderstood, "", fmt.Errorf("%v: %w", *c, c.Unread))
	}
	return len(bound) > 0 || s.affectsOutbox(c)
}

// bindingsOf returns the Bindings that a change concerns: those of its table, or of all tables
// that it may have changed.
func (c *Consumer) bindingsOf(change *event.Change) []*Binding {
	if !affectsWholeTable(change) {
		return c.of[event.Table{Schema: change.Schema, Name: change.Table}]
	}
	var all []*Binding
	for i := range c.bindings {
		b := &c.bindings[i]
		if (change.Schema == "" || change.Schema == b.table.Schema) &&
			(change.Table == "" || change.Table == b.table.Name) {
			all = append(all, b)
		}
	}
	return all
}

// addWork adds the work for a change to w. It reports whether the filter of a loader may have
// missed a row, because the change was not understood.
func (s *session) addWork(w *work, c *event.Change) (gap bool) {
	for _, b := range s.bindingsOf(c) {
		if b.row == nil {
			continue
		}
		if affectsWholeTable(c) {
			b.whole(w)
			continue
		}
		err := b.addWork(w, c)
		if err == nil {
			continue
		}
		s.update(func(s *Stats) { s.Misunderstood++ })
		s.alert(AlertNotUnderstood, b.name, err)
		if b.filter != nil {
			w.parked = append(w.parked, toPark{parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err})
			continue
		}
		b.whole(w)
		_, filter := writeside.Of(s.cache).Loader(b.loader)
		gap = gap || filter && b.mayBeNewKey(c)
	}
	return gap
}

// onGap calls Options.OnGap, which may take long.
//
// While another call rebuilds the filter, such as one of Maintain, onGap waits and then calls
// OnGap again: that rebuild may have read the table before the Source started to deliver.
func (s *session) onGap(ctx context.Context) error {
	return s.trackLong("Options.OnGap", func() error {
		for n := 1; ; n++ {
			err := s.options.OnGap(ctx)
			if !errors.Is(err, bloom.ErrRebuilding) {
				return err
			}
			if n == 1 {
				s.options.Logger.Info("canal: waiting for another rebuild before Options.OnGap is called again",
					"error", err)
			}
			if err := retry.Sleep(ctx, retry.Delay(n, firstPause, gapPause)); err != nil {
				return err
			}
		}
	})
}

// handle calls the handlers that a change concerns.
func (s *session) handle(ctx context.Context, c *event.Change) error {
	for _, b := range s.bindingsOf(c) {
		if b.handle == nil {
			continue
		}
		if err := s.handleBy(ctx, b, c); err != nil {
			return err
		}
	}
	return nil
}

// handleBy calls one handler, and parks the change after Options.Attempts failures.
func (s *session) handleBy(ctx context.Context, b *Binding, c *event.Change) (err error) {
	for n := 1; ; n++ {
		if ctx.Err() != nil { // another Consumer may already process later changes of this row
			return ctx.Err()
		}
		if err = s.track(b.title(), b.name, func() error {
			return guarded(ctx, func(ctx context.Context) error { return b.handle(ctx, *c) })
		}); err == nil {
			s.update(func(s *Stats) { s.Handled++ })
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.update(func(s *Stats) { s.HandlerErrors++ })
		if n >= s.options.Attempts {
			return s.park(ctx, parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err)
		}
		_ = retry.Sleep(ctx, retry.Delay(n, firstPause, longPause))
	}
}

// checkParking raises an alert if the Parking has a Check and that fails. Otherwise the error would
// only be noticed when a change has to be parked, and would then block all changes.
func (c *Consumer) checkParking(ctx context.Context) {
	p, can := c.options.Parking.(ParkingChecker)
	if !can {
		return
	}
	limited, cancel := context.WithTimeout(ctx, longPause)
	defer cancel()
	if err := guarded(limited, p.Check); err != nil && ctx.Err() == nil {
		c.alert(AlertParking, "", err)
	}
}

// park stores p in the Parking, and retries until that succeeds, because the change would
// otherwise be lost without a trace.
func (s *session) park(ctx context.Context, p parking.Parked, cause error) error {
	p.Time = time.Now()
	if s.options.Parking == nil { // only for malformed messages: Bindings that park require a Parking
		return fmt.Errorf("%w: messages that the source cannot read need Options.Parking: %w", ErrSetup, cause)
	}
	if err := s.retryUntilDone(ctx, AlertParking, func(ctx context.Context) error {
		return s.track("Options.Parking", p.Binding, func() error { return s.options.Parking.Park(ctx, p) })
	}); err != nil {
		return err
	}
	s.update(func(s *Stats) { s.Parked++ })
	s.alert(AlertParked, p.Binding, cause)
	return nil
}
