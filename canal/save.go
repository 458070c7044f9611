package canal

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// session is what the Consumer has read since it became active.
type session struct {
	*Consumer
	token     int64
	at, saved event.Position // done up to here; and known to the checkpoint
	news      bool           // changes are done since it was saved, or that has failed
	under     *saving        // nil: none is under way
	lastTry   time.Time
}

// saving is a position on its way to the checkpoint.
type saving struct {
	at   event.Position
	done chan error
}

var errNoAnswer = errors.New("no answer yet")

// save begins to keep the position, if it has changed. It does not wait, so that a checkpoint that
// is slow keeps no cache stale. A save that fails is tried again at the next time.
func (s *session) save(ctx context.Context) {
	if u := s.under; u != nil {
		select {
		case err := <-u.done:
			s.settle(err)
		default:
			if time.Since(s.lastTry) > 2*longPause { // and it was given one of them
				s.ill("checkpoint", errNoAnswer)
			}
			return
		}
	}
	if s.checkpoint == nil || s.at == s.saved || s.at == "" {
		return
	}
	s.lastTry, s.news = time.Now(), false
	u := &saving{s.at, make(chan error, 1)}
	s.under = u
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longPause)
	do := func() {
		defer cancel()
		err := errors.New("the checkpoint has called runtime.Goexit")
		defer func() { u.done <- err }()
		err = guarded(ctx, func(ctx context.Context) error { return s.checkpoint.Save(ctx, u.at, s.token) })
	}
	go do()
}

// savedNow tells when the save that is under way has ended; nil if there is none.
func (s *session) savedNow() <-chan error {
	if s.under == nil {
		return nil
	}
	return s.under.done
}

// settle notes what has become of a save.
func (s *session) settle(err error) {
	u := s.under
	s.under = nil
	if err != nil {
		s.news = true
		s.ill("checkpoint", err)
		return
	}
	s.well("checkpoint")
	s.saved = u.at
	s.savedPosition.Store(&u.at)
}

// due saves the position if the last time is longer ago than SaveEvery, while what was read
// together is being done.
func (s *session) due(ctx context.Context) {
	if s.news && time.Since(s.lastTry) >= s.options.SaveEvery {
		s.save(ctx)
	}
}

// saveLast keeps the position, and waits for it.
func (s *session) saveLast(ctx context.Context) {
	if s.under != nil {
		s.settle(<-s.under.done)
	}
	s.save(ctx)
	if s.under != nil {
		s.settle(<-s.under.done)
	}
}
