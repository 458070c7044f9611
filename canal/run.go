package canal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock"
)

// Run consumes until ctx ends; then it returns nil, with the position saved. It tries again, for
// ever, if Redis or the database is out of reach, or a lock is lost. Run returns an error if the
// Consumer is running already; if the Source says that it is not set up for this (ErrSetup); if the
// position is lost, with Options.StopWhenLost; cacheaside.ErrClosed when the cache was closed, and
// lock.ErrClosed when the Locker was.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.run.TryLock() {
		return errors.New("canal: the Consumer is running already")
	}
	defer c.run.Unlock()
	c.note(func(*Stats) { c.running = true })
	defer c.note(func(*Stats) { c.running = false })
	defer c.told.Wait()
	for ctx.Err() == nil {
		err := c.tenure(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrSetup), errors.Is(err, ErrPositionLost), c.isClosed(err), errors.Is(err, lock.ErrClosed):
			return fmt.Errorf("canal: %w", err)
		}
	}
	return nil
}

// tenure is one time of being the active Consumer: until ctx ends, or the lock is lost.
func (c *Consumer) tenure(ctx context.Context) error {
	token := int64(0)
	if c.options.Locker != nil {
		still := time.AfterFunc(noFailure, func() { c.well("lock") })
		lease, err := c.options.Locker.Acquire(ctx, c.options.Name, nil)
		still.Stop()
		if errors.Is(err, lock.ErrClosed) {
			return err
		}
		if err != nil {
			return c.pause(ctx, "lock", err)
		}
		c.well("lock")
		defer func(outer context.Context) {
			if lost := context.Cause(lease.Context()); lost != nil && outer.Err() == nil {
				c.ill("lock", lost)
			}
			_ = lease.Release() // it ends by itself
		}(ctx)
		ctx, token = lease.Context(), lease.Token()
	}
	c.note(func(s *Stats) { s.Active = true })
	defer c.idle()
	c.checkParking(ctx)
	s := &session{Consumer: c, token: token}
	if err := s.loadCheckpoint(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := s.stream(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrSetup) && c.lostSince(ctx): // as another has connected under the same name, which has the lock now
		case errors.Is(err, ErrSetup), s.isClosed(err):
			return err
		case errors.Is(err, ErrPositionLost):
			c.alert("position lost", "", err)
			c.note(func(s *Stats) { s.PositionsLost++ })
			if c.options.StopWhenLost {
				return err
			}
			s.at, s.gap = "", true
			s.progress.Store(nil)
			_ = c.pause(ctx, "source", err) // it may be lost again
		default:
			_ = c.pause(ctx, "source", err)
		}
	}
	return ctx.Err()
}

// loadCheckpoint tries until it has the position from which the session goes on.
func (s *session) loadCheckpoint(ctx context.Context) error {
	if s.checkpoint == nil {
		return nil
	}
	return s.insist(ctx, "checkpoint", func(ctx context.Context) error {
		return s.during("the checkpoint", "", func() (err error) {
			s.at, err = s.checkpoint.Load(ctx)
			s.saved = s.at
			return err
		})
	})
}

// lostSince tells whether the lock was lost meanwhile. A process that was suspended may hear of
// what has come of that first, and of the loss in a moment.
func (c *Consumer) lostSince(ctx context.Context) bool {
	if c.options.Locker == nil {
		return false
	}
	_ = retry.Sleep(ctx, time.Second)
	return ctx.Err() != nil
}

const (
	most      = 4000             // changes that are done together
	mostBytes = 4 << 20          // that they take, about
	noFailure = 30 * time.Second // a consumer that has waited for the lock for so long, and heard of no failure, counts as working
)

// stream reads from where it is until something fails.
func (s *session) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also of a handler that calls runtime.Goexit
	batches, all := make(chan event.Batch), make(chan []event.Batch)
	go collect(ctx, batches, all)
	ended := make(chan error, 1)
	from := s.at
	go func() {
		err := errors.New("the source has called runtime.Goexit")
		defer close(batches)
		defer func() { ended <- err }()
		err = guarded(ctx, func(ctx context.Context) error {
			return s.source.Run(ctx, event.Need{From: from, Tables: s.need}, batches)
		})
	}()
	saving, last := context.WithCancel(context.WithoutCancel(ctx))
	defer last()
	var saves sync.WaitGroup
	if s.checkpoint != nil {
		saves.Go(func() { s.keepSaved(saving) })
	}
	err := s.consume(ctx, all)
	last()
	saves.Wait()
	cancel()
	for range all { // until it has ended
	}
	ran := <-ended
	if ran == nil {
		ran = errors.New("the source has ended")
	}
	return errors.Join(err, ran)
}

func (s *session) consume(ctx context.Context, batches <-chan []event.Batch) error {
	var works <-chan time.Time // when the source counts as working: nobody knows that before its first batch
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-works:
			s.well("source")
		case some, ok := <-batches:
			if !ok {
				return nil
			}
			first := works == nil
			if first {
				works = time.After(longPause)
				s.setMissing(some[0].Missing, true)
			}
			if slices.ContainsFunc(some, func(b event.Batch) bool { return len(b.Changes) > 0 }) { // one that only begins may fail again
				s.well("source")
			}
			unknown := s.at == "" && (s.checkpoint != nil || some[0].Position != "") // what was before; a broker, which has no positions, knows it
			if first && (s.gap || unknown) {
				if err := s.repair(ctx); err != nil {
					return err
				}
				s.gap = false
			}
			if err := s.do(ctx, some); err != nil {
				return err
			}
		}
	}
}

// collect gives what is there all at once, so that under load much is done in one trip, and takes
// the next in while that is done. It ends with in; when ctx has ended it gives nothing more.
func collect(ctx context.Context, in <-chan event.Batch, out chan<- []event.Batch) {
	defer close(out)
	var some []event.Batch
	n, bytes := 0, 0
	for {
		from, to := in, out
		if len(some) == 0 {
			to = nil
		}
		if n >= most || bytes >= mostBytes {
			from = nil
		}
		select {
		case b, ok := <-from:
			if !ok {
				in = nil
				if len(some) == 0 {
					return
				}
				continue
			}
			some = append(some, b)
			n += 1 + len(b.Changes) // one without changes counts, too: there may be one after the other
			bytes += b.Size()
		case to <- some:
			if in == nil {
				return
			}
			some, n, bytes = nil, 0, 0
		case <-ctx.Done():
			if in != nil {
				for range in { // so that the source is not kept from ending
				}
			}
			return
		}
	}
}

// repair brings right what may have been missed before the Source began to listen.
func (s *session) repair(ctx context.Context) error {
	w := newWork(0)
	s.whole(w)
	if err := s.insist(ctx, "redis", func(ctx context.Context) error { return w.try(ctx, s.alarm, s.cache) }); err != nil {
		return err
	}
	if s.options.OnGap == nil {
		return nil
	}
	return s.insist(ctx, "gap", s.onGap)
}
