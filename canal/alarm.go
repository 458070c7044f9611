package canal

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
)

// alarm notes what fails, and alerts what lasts.
type alarm struct {
	options  *Options
	counters *counters
	closed   func() bool // whether the cache is
	alerting sync.WaitGroup

	mu     sync.Mutex
	ills   map[string]*ill
	slow   map[string]bool      // what has not returned in time, the last time
	recent map[string]time.Time // when an alert of a kind was last given
}

// ill is something that has failed since it last worked.
type ill struct {
	since   time.Time
	times   int
	alerted bool
	err     error
}

// ill notes that something has failed, and alerts once when that has lasted. It answers how often
// it has failed in a row.
func (a *alarm) ill(what string, err error) int {
	a.counters.failures.Add(1)
	a.counters.lastError.Store(&err)
	times, lasts := a.note(what, err)
	if lasts {
		a.give(Alert{What: what, Err: err})
	}
	return times
}

func (a *alarm) note(what string, err error) (times int, lasts bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ills == nil {
		a.ills = map[string]*ill{}
	}
	i := a.ills[what]
	if i == nil {
		i = &ill{since: time.Now()}
		a.ills[what] = i
	}
	i.times++
	i.err = err
	if !i.alerted && time.Since(i.since) >= a.options.AlertAfter {
		i.alerted = true
		lasts = true
	}
	return i.times, lasts
}

// well notes that it works.
func (a *alarm) well(what string) {
	a.mu.Lock()
	i := a.ills[what]
	delete(a.ills, what)
	a.mu.Unlock()
	if i != nil && i.alerted {
		a.options.Logger.Info("canal: it works again", "what", what, "failed", i.times, "for", time.Since(i.since).Round(time.Millisecond))
	}
}

// forget is for when all that has failed is another's.
func (a *alarm) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.ills)
}

// failing tells what fails just now, and why.
func (a *alarm) failing() (what string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w, i := range a.ills {
		if what == "" || i.since.Before(a.ills[what].since) {
			what, err = w, i.err
		}
	}
	return what, err
}

// alert tells of something that has happened, at most once a second for each kind and binding.
func (a *alarm) alert(what, binding string, err error) {
	a.counters.lastError.Store(&err)
	if a.isNew(what + " " + binding) {
		a.give(Alert{What: what, Binding: binding, Err: err})
	}
}

func (a *alarm) isNew(kind string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.recent == nil {
		a.recent = map[string]time.Time{}
	}
	if last, ok := a.recent[kind]; ok && time.Since(last) < time.Second {
		return false
	}
	a.recent[kind] = time.Now()
	return true
}

// give is called without the mutex, for a logger may ask for Health.
func (a *alarm) give(alert Alert) {
	a.counters.alerts.Add(1)
	args := []any{slog.String("what", alert.What), slog.Any("error", alert.Err)}
	if alert.Binding != "" {
		args = append(args, slog.String("binding", alert.Binding))
	}
	a.options.Logger.Warn("canal: alert", args...)
	if f := a.options.OnAlert; f != nil {
		a.alerting.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					a.options.Logger.Warn("canal: Options.OnAlert panicked", "error", &cacheaside.PanicError{Value: p, Stack: debug.Stack()})
				}
			}()
			f(alert)
		})
	}
}

// pause notes a failure, and waits the longer the oftener it has failed in a row. It returns ctx's
// error when that ends.
func (a *alarm) pause(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	sleep(ctx, wait(a.ill(what, err)))
	return ctx.Err()
}

// insist tries until it works, or ctx ends, or the cache is closed.
func (a *alarm) insist(ctx context.Context, what string, try func(context.Context) error) error {
	for {
		err := guarded(ctx, try)
		if err == nil {
			a.well(what)
			return nil
		}
		if a.isClosed(err) {
			return err
		}
		if err := a.pause(ctx, what, err); err != nil {
			return err
		}
	}
}

func guarded(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f(ctx)
}

// wait is how long to wait after something has failed n times in a row: it doubles, and half of it
// is by chance ("equal jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
// Blog, 2015).
func wait(n int) time.Duration {
	d := longPause
	if n < 10 {
		d = min(longPause, firstPause<<(n-1))
	}
	return d/2 + rand.N(d/2+1)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
