package canal

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// session is what the Consumer has read since it became active.
type session struct {
	*Consumer
	token int64
	at    event.Position // done up to here
	saved event.Position // known to the checkpoint
	news  int            // batches with changes that are done

	progress atomic.Pointer[progress] // what is to be saved; nil: nothing yet
}

// progress is how far a session has come: at and news when they belonged together.
type progress struct {
	at   event.Position
	news int
}

// idleSaves is how many times SaveEvery passes between saves while no row changes that is bound.
const idleSaves = 10

var errNoAnswer = errors.New("no answer yet")

// keepSaved saves the position each SaveEvery, if it has changed, and once more when ctx ends. A
// save that fails is tried again at the next time. It has a goroutine of its own, so that a
// checkpoint that is slow keeps no cache stale.
func (s *session) keepSaved(ctx context.Context) {
	ticks := time.NewTicker(max(s.options.SaveEvery, time.Millisecond))
	defer ticks.Stop()
	news, last := 0, time.Now()
	if p := s.progress.Load(); p != nil {
		news = p.news
	}
	for ended := false; !ended; {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			ended = true
		}
		p := s.progress.Load()
		if p == nil || p.at == s.saved {
			continue
		}
		idle := time.Since(last) >= idleSaves*s.options.SaveEvery // a checkpoint that is in the database moves the position by being saved
		if ended || idle || p.news != news {
			last = time.Now()
			if s.save(context.WithoutCancel(ctx), p.at) {
				news = p.news
			}
		}
	}
}

// save saves a position, and reports whether that has worked.
func (s *session) save(ctx context.Context, at event.Position) bool {
	ctx, cancel := context.WithTimeout(ctx, longPause)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.New("the checkpoint has called runtime.Goexit")
		defer func() { done <- err }()
		err = guarded(ctx, func(ctx context.Context) error { return s.checkpoint.Save(ctx, at, s.token) })
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				s.ill("checkpoint", err)
				return false
			}
			s.well("checkpoint")
			s.saved = at
			s.note(func(s *Stats) { s.Saved = at })
			return true
		case <-time.After(2 * longPause): // it was given one of them
			s.ill("checkpoint", errNoAnswer)
		}
	}
}
