package canal

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A session is the state of a Consumer since it became active.
type session struct {
	*Consumer
	token     int64
	position  event.Position // processed up to here
	saved     event.Position // in the checkpoint
	processed int            // number of processed batches with changes

	progress atomic.Pointer[progress] // to be saved; nil: none so far
}

// A progress is a consistent copy of position and processed of a session.
type progress struct {
	position  event.Position
	processed int
}

// idleSaves is the number of intervals of SaveEvery between two saves while no bound row changes.
const idleSaves = 10

var errNoReply = errors.New("the checkpoint has not returned yet")

// saveLoop saves the position every SaveEvery, if it has changed, and once more when ctx ends. A
// failed save is retried at the next interval. saveLoop runs on its own goroutine, so that a slow
// checkpoint does not delay invalidations.
func (s *session) saveLoop(ctx context.Context) {
	ticks := time.NewTicker(max(s.options.SaveEvery, time.Millisecond))
	defer ticks.Stop()
	processed, last := 0, time.Now()
	if p := s.progress.Load(); p != nil {
		processed = p.processed
	}
	for ended := false; !ended; {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			ended = true
		}
		p := s.progress.Load()
		if p == nil || p.position == s.saved {
			continue
		}
		// a checkpoint in the consumed database changes the position with each save
		idle := time.Since(last) >= idleSaves*s.options.SaveEvery
		if ended || idle || p.processed != processed {
			last = time.Now()
			if s.save(context.WithoutCancel(ctx), p.position) {
				processed = p.processed
			}
		}
	}
}

// save saves a position, and reports whether that succeeded.
func (s *session) save(ctx context.Context, position event.Position) bool {
	ctx, cancel := context.WithTimeout(ctx, longPause)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.New("the checkpoint called runtime.Goexit")
		defer func() { done <- err }()
		err = guarded(ctx, func(ctx context.Context) error { return s.checkpoint.Save(ctx, position, s.token) })
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				s.failed(AlertCheckpoint, err)
				return false
			}
			s.recovered(AlertCheckpoint)
			s.saved = position
			s.release(position)
			s.update(func(s *Stats) { s.Saved = position })
			return true
		case <-time.After(2 * longPause): // the context of Save ends after one longPause
			s.failed(AlertCheckpoint, errNoReply)
		}
	}
}

// release reports to the Source that its log before a position is no longer needed.
func (c *Consumer) release(position event.Position) {
	if r, ok := c.source.(Retainer); ok {
		r.Saved(position)
	}
}
