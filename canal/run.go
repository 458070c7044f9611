package canal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock"
)

// Run consumes changes until ctx ends, and then saves the position and returns nil. While Redis
// or the database is down, or after the lock was lost, it retries without limit.
//
// If the Source is not set up correctly (ErrSetup), Run returns an error, but only before the
// Consumer has worked for the first time: if the Checkpoint has no position, the Source has not
// delivered a batch, and Options.RetrySetup is not set. Otherwise it raises an alert whose text has
// the statements that correct the setup, Health fails, and Run retries until they were executed.
// It then invalidates all keys of all bound loaders.
//
// Run also returns an error if the Consumer is already running, if there is an outbox and the Cache
// has no loader (ErrSetup), if the position is lost and Options.StopWhenLost is set, if the Source
// is closed (ErrSourceClosed), if the cache is closed (cacheaside.ErrClosed), or if the Locker is
// closed (lock.ErrClosed).
func (c *Consumer) Run(ctx context.Context) error {
	if !c.run.TryLock() {
		return errors.New("canal: the Consumer is running already")
	}
	defer c.run.Unlock()
	if err := c.checkOutbox(); err != nil {
		return wording.Errorf("canal: %w", err)
	}
	c.update(func(*Stats) { c.running = true })
	defer c.update(func(*Stats) { c.running = false })
	defer c.notifier.Wait()
	for ctx.Err() == nil {
		err := c.runActive(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrSetup), errors.Is(err, ErrSourceClosed), errors.Is(err, ErrPositionLost),
			c.isClosed(err), errors.Is(err, lock.ErrClosed):
			return wording.Errorf("canal: %w", err)
		}
	}
	return nil
}

// runActive acquires the lock, if there is a Locker, and consumes until ctx ends or the lock is
// lost.
func (c *Consumer) runActive(ctx context.Context) error {
	token := int64(0)
	if c.options.Locker != nil {
		lease, err := c.acquire(ctx)
		if errors.Is(err, lock.ErrClosed) {
			return err
		}
		if err != nil {
			return c.backoff(ctx, AlertLock, err)
		}
		c.recovered(AlertLock)
		defer func(outer context.Context) {
			if lost := context.Cause(lease.Context()); lost != nil && outer.Err() == nil {
				c.failed(AlertLock, lost)
			}
			_ = lease.Release() // if this fails, the lease expires
		}(ctx)
		ctx, token = lease.Context(), lease.Token()
	}
	c.update(func(s *Stats) { s.Active = true })
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
		case errors.Is(err, ErrSetup) && c.lockLost(ctx):
			// another replica with the same server ID has connected: the Consumer that holds the
			// lock now
		case errors.Is(err, ErrSourceClosed), s.isClosed(err):
			return err
		case errors.Is(err, ErrSetup) && !s.worked && !s.options.RetrySetup:
			return err
		case errors.Is(err, ErrSetup):
			s.delayed = true
			s.failedSetup(ctx, err)
		case errors.Is(err, ErrPositionLost):
			c.alert(AlertPositionLost, "", err)
			c.update(func(s *Stats) { s.PositionsLost++ })
			if c.options.StopWhenLost {
				return err
			}
			s.position, s.gap = "", true
			s.progress.Store(nil)
			_ = c.backoff(ctx, AlertSource, err) // the position may be lost again at once
		default:
			_ = c.backoff(ctx, AlertSource, err)
		}
	}
	return ctx.Err()
}

// acquire acquires the lock. A Consumer that waits for another one is healthy once the service of
// the lock has replied.
func (c *Consumer) acquire(ctx context.Context) (*lock.Lease, error) {
	lease, err := c.options.Locker.TryAcquire(ctx, c.options.Name, nil)
	if !errors.Is(err, lock.ErrHeld) {
		return lease, err
	}
	c.recovered(AlertLock)
	return c.options.Locker.Acquire(ctx, c.options.Name, nil)
}

// loadCheckpoint loads the position from which the session continues. It retries until that
// succeeds.
func (s *session) loadCheckpoint(ctx context.Context) error {
	if s.checkpoint == nil {
		return nil
	}
	return s.retryUntilDone(ctx, AlertCheckpoint, func(ctx context.Context) error {
		return s.track("the checkpoint", "", func() (err error) {
			s.position, err = s.checkpoint.Load(ctx)
			s.saved, s.worked = s.position, s.worked || s.position != ""
			return err
		})
	})
}

// lockLost reports whether the lock was lost, after waiting for at most a second. If this process
// was suspended, it can see the effects of a lost lock before it is notified of the loss.
func (c *Consumer) lockLost(ctx context.Context) bool {
	if c.options.Locker == nil {
		return false
	}
	_ = retry.Sleep(ctx, time.Second)
	return ctx.Err() != nil
}

const (
	maxChanges = 4000    // changes that are processed together
	maxBytes   = 4 << 20 // approximate size of these changes
)

// stream runs the Source from the current position, and processes its batches, until either
// fails.
func (s *session) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also if a handler calls runtime.Goexit
	batches, all := make(chan event.Batch), make(chan []event.Batch)
	go collect(ctx, batches, all)
	ended := make(chan error, 1)
	from := s.position
	go func() {
		err := errors.New("the Source called runtime.Goexit")
		defer close(batches)
		defer func() { ended <- err }()
		err = guarded(ctx, func(ctx context.Context) error {
			return s.source.Run(ctx, event.Need{From: from, Tables: s.need, Messages: s.messages()}, batches)
		})
	}()
	saving, last := context.WithCancel(context.WithoutCancel(ctx))
	defer last()
	var saves sync.WaitGroup
	if s.checkpoint != nil {
		saves.Go(func() { s.saveLoop(saving) })
	}
	err := s.consume(ctx, all)
	last()
	saves.Wait()
	cancel()
	for range all { // until collect has returned
	}
	ran := <-ended
	if ran == nil {
		ran = errors.New("the Source returned without an error")
	}
	return errors.Join(err, ran)
}

// consume processes batches until ctx ends, the channel is closed, or processing fails.
func (s *session) consume(ctx context.Context, batches <-chan []event.Batch) error {
	var healthy <-chan time.Time // fires when the Source counts as working; nil before its first batch
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-healthy:
			s.works()
		case received, ok := <-batches:
			if !ok {
				return nil
			}
			first := healthy == nil
			if first {
				healthy, s.worked = time.After(longPause), true
				s.setMissing(received[0].Missing, true)
			}
			if slices.ContainsFunc(received, func(b event.Batch) bool { return len(b.Changes)+len(b.Messages) > 0 }) {
				// a Source that has delivered no changes may fail again
				s.works()
			}
			// the earlier changes are unknown; a broker has no positions, but keeps its own
			unknown := s.position == "" && (s.checkpoint != nil || received[0].Position != "")
			if first && (s.gap || s.delayed || unknown) {
				if err := s.repair(ctx, s.gap || unknown); err != nil {
					return err
				}
				s.gap, s.delayed = false, false
			}
			if err := s.process(ctx, received); err != nil {
				return err
			}
		}
	}
}

// collect gathers batches from in while earlier ones are processed, and sends all of them
// together. Under load, one trip to Redis therefore serves many batches. collect returns when in
// is closed. After ctx has ended it sends nothing more, and discards batches until in is closed.
func collect(ctx context.Context, in <-chan event.Batch, out chan<- []event.Batch) {
	defer close(out)
	var some []event.Batch
	n, bytes := 0, 0
	for {
		from, to := in, out
		if len(some) == 0 {
			to = nil
		}
		if n >= maxChanges || bytes >= maxBytes {
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
			// batches without changes count too: there may be any number of them
			n += 1 + len(b.Changes) + len(b.Messages)
			bytes += b.Size()
		case to <- some:
			if in == nil {
				return
			}
			some, n, bytes = nil, 0, 0
		case <-ctx.Done():
			if in != nil {
				for range in { // do not block the Source
				}
			}
			return
		}
	}
}

// works records that the Source works.
func (s *session) works() {
	s.recovered(AlertSource)
	s.recovered(AlertSetup)
	s.setups = nil
}

// repair invalidates all bound loaders. If there is a gap, it also calls Options.OnGap, because
// changes may have been missed before the Source started to deliver. Otherwise the Source delivers
// all of them, but later than usual.
func (s *session) repair(ctx context.Context, gap bool) error {
	w := newWork(0)
	s.invalidateAll(w)
	if err := s.retryUntilDone(ctx, AlertRedis, func(ctx context.Context) error {
		return w.try(ctx, s.alarm, s.cache)
	}); err != nil {
		return err
	}
	if !gap || s.options.OnGap == nil {
		return nil
	}
	return s.retryUntilDone(ctx, AlertGap, s.onGap)
}
