package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// ask calls the queue, which may be the user's: a panic, or runtime.Goexit, is an error.
func (s *shift) ask(call func() error) error {
	answer := make(chan error, 1)
	go func() {
		err := errors.New("consistency: the queue has called runtime.Goexit")
		panicked := true
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("consistency: the queue panicked with a %T", p)
			}
			if panicked {
				s.counters.panics.Add(1)
			}
			answer <- err
		}()
		err = call()
		panicked = false
	}()
	return <-answer
}

// log survives what a handler of the user's does.
func (s *shift) log(ctx context.Context, level slog.Level, message string, args ...any) {
	defer func() {
		if recover() != nil {
			s.counters.panics.Add(1)
		}
	}()
	s.options.Logger.Log(ctx, level, message, args...)
}

// rest pauses, until ctx ends at most, and sees meanwhile to what has taken long.
func (s *shift) rest(ctx context.Context, pause time.Duration) {
	if pause == 0 {
		s.late(ctx)
		return
	}
	var woken <-chan error
	if pause == idle {
		pause = s.options.Poll
		if woken = s.wait(ctx); woken != nil {
			pause = betweenLooks
		}
	}
	over := time.NewTimer(pause)
	defer over.Stop()
	for ctx.Err() == nil {
		overdue := time.NewTimer(s.untilOverdue())
		select {
		case <-ctx.Done():
		case <-over.C:
			overdue.Stop()
			return
		case err := <-woken:
			s.waiting = nil
			if err == nil {
				overdue.Stop()
				return
			}
			s.polls = true
			over.Reset(s.queueFailed(ctx, err))
		case r := <-s.ended:
			s.finish(ctx, s.note(ctx, r))
		case <-overdue.C:
			s.finish(ctx, s.overdue(ctx)...)
		}
		overdue.Stop()
	}
}

// wait tells when a queue that can tell so has something to do, or after betweenLooks; nil if it
// cannot.
func (s *shift) wait(ctx context.Context) <-chan error {
	q, ok := s.queue.(interface{ Wait(context.Context) })
	if !ok || s.polls {
		return nil
	}
	if s.waiting == nil { // else as it was left
		woken := make(chan error, 1)
		s.waiting = woken
		go func() {
			ctx, cancel := context.WithTimeout(ctx, betweenLooks)
			defer cancel()
			woken <- s.ask(func() error { q.Wait(ctx); return nil })
		}()
	}
	return s.waiting
}

// late sees to what has taken long, and does not wait.
func (s *shift) late(ctx context.Context) {
	for {
		select {
		case r := <-s.ended:
			s.finish(ctx, s.note(ctx, r))
			continue
		default:
		}
		break
	}
	s.finish(ctx, s.overdue(ctx)...)
}

// finish judges groups that have ended, or are overdue, and gives them back.
func (s *shift) finish(ctx context.Context, groups ...*group) {
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g == nil })
	if len(groups) == 0 {
		return
	}
	if err := s.giveBack(ctx, s.judge(ctx, groups)); err != nil {
		s.queueFailed(ctx, err)
	}
}
