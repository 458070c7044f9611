package consistency

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// alarm sounds once for all that fails at a time, and again only when all of that is over.
type alarm struct {
	about map[string]time.Time // when it failed last; keys by their hashes, as Key.String has them
}

// What all keys need, and no Key.String is.
const (
	redisOut = "redis"
	queueOut = "queue"
)

const (
	// aboutAtMost is of how much an alarm knows what it is about. If more than that fails, it may
	// sound again before all of it is over.
	aboutAtMost = 1000

	// overAfter is how long after it has failed last something is not known to fail any more:
	// another relay may have done it. If it still failed it would have come back twenty times, and
	// to each of ten relays about twice.
	overAfter = 20 * longestDelay
)

// failed answers whether the alarm is to sound.
func (a *alarm) failed(what string) bool {
	first := !a.sounds()
	if a.about == nil {
		a.about = map[string]time.Time{}
	}
	if _, known := a.about[what]; known || len(a.about) < aboutAtMost {
		a.about[what] = time.Now()
	}
	return first
}

func (a *alarm) sounds() bool { return len(a.about) > 0 }

// over answers whether the alarm has ended by that.
func (a *alarm) over(what string) bool {
	if _, known := a.about[what]; !known {
		return false
	}
	delete(a.about, what)
	return !a.sounds()
}

// forget ends what has not failed for long.
func (a *alarm) forget() {
	for what, last := range a.about {
		if time.Since(last) > overAfter {
			delete(a.about, what)
		}
	}
}

// alert tells that something has failed so often. It answers whether it did: nobody is told again
// of what the alarm sounds for.
func (s *shift) alert(ctx context.Context, of *alarm, what string, attempts int, err error) bool {
	if !of.failed(what) {
		return false
	}
	s.nextLook = time.Time{}
	s.look(ctx)
	s.give(ctx, "cacheaside: a Relay cannot do what it is for, and goes on trying", Alert{Depth: s.counters.depth(), Attempts: attempts, Err: err})
	return true
}

func (s *shift) give(ctx context.Context, message string, a Alert) {
	s.counters.alerts.Add(1)
	s.log(ctx, slog.LevelWarn, message, "attempts", a.Attempts, "items", a.Depth.Items, "due", a.Depth.Due, "oldest", a.Depth.Oldest, "err", a.Err)
	if s.options.OnAlert != nil {
		s.alerting.Go(func() { s.tell(a) })
	}
}

// tell survives what OnAlert does.
func (s *shift) tell(a Alert) {
	defer func() {
		if p := recover(); p != nil {
			s.counters.panics.Add(1)
			s.log(context.Background(), slog.LevelError, "cacheaside: RelayOptions.OnAlert panicked", "with", fmt.Sprintf("%T", p))
		}
	}()
	s.options.OnAlert(a)
}

func (s *shift) over(of *alarm, what string) {
	if of.over(what) {
		s.log(context.Background(), slog.LevelInfo, "cacheaside: what a Relay could not do is done")
	}
}
