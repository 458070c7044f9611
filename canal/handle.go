package canal

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// do carries out batches.
func (s *session) do(ctx context.Context, batches []event.Batch) error {
	n := 0
	for i := range batches {
		n += len(batches[i].Changes)
	}
	w := newWork(n)
	gap := false
	for i := range batches {
		if len(batches[i].Missing) > 0 {
			s.setMissing(batches[i].Missing, false)
		}
		if batches[i].Malformed != nil && len(batches[i].Changes) == 0 { // it may be the change of any row
			s.whole(w)
		}
		for j := range batches[i].Changes {
			c := &batches[i].Changes[j]
			s.notice(c)
			s.understand(w, c)
			gap = gap || s.opensGap(c)
		}
	}
	if err := s.insist(ctx, "redis", func(ctx context.Context) error { return w.try(ctx, s.Consumer) }); err != nil {
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

// finish parks and handles what is in a batch whose keys are invalidated, and acknowledges it.
func (s *session) finish(ctx context.Context, b event.Batch) error {
	if b.Malformed != nil {
		s.malformed.Add(1)
		cause := cmp.Or(b.Malformed.Err, errMalformed)
		if err := s.park(ctx, parking.Parked{Message: b.Malformed.Message, Reason: cause.Error()}, cause); err != nil {
			return err
		}
	}
	for i := range b.Changes {
		if !s.handles {
			break
		}
		if err := s.handle(ctx, &b.Changes[i]); err != nil {
			return err
		}
	}
	if b.Position != "" {
		s.at = b.Position
		s.position.Store(&b.Position)
	}
	if !b.Time.IsZero() {
		s.upTo.Store(b.Time.UnixNano())
	}
	s.batches.Add(1)
	s.changes.Add(int64(len(b.Changes)))
	s.news = s.news || len(b.Changes) > 0 || b.Malformed != nil
	if b.Ack != nil {
		if err := guarded(ctx, func(context.Context) error { b.Ack(); return nil }); err != nil {
			return fmt.Errorf("Batch.Ack: %w", err)
		}
	}
	if b.Position != "" {
		s.due(ctx)
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
		s.misunderstood.Add(1)
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
		s.misunderstood.Add(1)
		s.alert("not understood", b.name, err)
		if b.filter {
			w.parked = append(w.parked, unknown{parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err})
			continue
		}
		b.whole(w)
	}
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
		if err = s.during(b.title(), b.name, func() error { return handled(ctx, b, c) }); err == nil {
			s.handledChanges.Add(1)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.handlerErrors.Add(1)
		if n >= s.options.Attempts {
			return s.park(ctx, parking.Parked{Binding: b.name, Change: *c, Reason: err.Error()}, err)
		}
		_ = retry.Sleep(ctx, retry.Delay(n, firstPause, longPause))
	}
}
