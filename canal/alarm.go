package canal

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// alarm notes what fails, and alerts what lasts.
type alarm struct {
	options  *Options
	counters *counters
	closed   func() bool      // whether the cache is
	ills     limitedlog.Alarm // what has failed since it last worked
	slow     limitedlog.Alarm // what has not returned in time, the last time
	told     limitedlog.Teller[Alert]

	mu     sync.Mutex
	recent limitedlog.Limit[string] // alerts, by kind and binding
}

func newAlarm(options *Options, counters *counters, closed func() bool) *alarm {
	a := &alarm{options: options, counters: counters, closed: closed}
	a.ills.After = options.AlertAfter
	a.recent.Quiet = time.Second
	a.told.To = options.OnAlert
	a.told.Panicked = func(p any) {
		options.Logger.Warn("canal: Options.OnAlert panicked", "error", &cacheaside.PanicError{Value: p, Stack: debug.Stack()})
	}
	return a
}

// ill notes that something has failed, and alerts once when that has lasted. It answers how often
// it has failed in a row.
func (a *alarm) ill(what string, err error) int {
	a.counters.failures.Add(1)
	a.counters.lastError.Store(&err)
	f, lasts := a.ills.Failed(what, err)
	if lasts {
		a.give(Alert{What: what, Err: err})
	}
	return f.Times
}

// well notes that it works.
func (a *alarm) well(what string) {
	if f, over := a.ills.Works(what); over {
		a.options.Logger.Info("canal: it works again", "what", what, "failed", f.Times, "for", time.Since(f.Since).Round(time.Millisecond))
	}
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
	_, due := a.recent.Count(kind)
	if due {
		a.recent.Pass(kind)
	}
	return due
}

// give is called without the mutex, for a logger may ask for Health.
func (a *alarm) give(alert Alert) {
	a.counters.alerts.Add(1)
	args := []any{slog.String("what", alert.What), slog.Any("error", alert.Err)}
	if alert.Binding != "" {
		args = append(args, slog.String("binding", alert.Binding))
	}
	a.options.Logger.Warn("canal: alert", args...)
	a.told.Tell(alert)
}

// pause notes a failure, and waits the longer the oftener it has failed in a row. It returns ctx's
// error when that ends.
func (a *alarm) pause(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	times := a.ill(what, err)
	if what == "gap" && times == 1 { // it may take long, so each failure costs much time
		a.options.Logger.Warn("canal: Options.OnGap failed, and is called again; all changes wait for it", "error", err)
	}
	_ = retry.Sleep(ctx, retry.Delay(times, firstPause, longPause))
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
