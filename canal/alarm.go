package canal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// alarm counts failures, and raises alerts.
type alarm struct {
	options *Options
	figures
	closed func() bool      // whether the cache is
	ills   limitedlog.Alarm // what has failed since it last worked
	slow   limitedlog.Alarm // what has not returned in time, the last time
	told   limitedlog.Teller[Alert]

	recent limitedlog.Limit[string] // alerts, by kind and binding; guarded by mu
}

func newAlarm(options *Options, closed func() bool) *alarm {
	a := &alarm{options: options, closed: closed}
	a.ills.After = options.AlertAfter
	a.recent.Quiet = time.Second
	a.told.To = options.OnAlert
	a.told.Panicked = func(p any) {
		options.Logger.Warn("canal: Options.OnAlert panicked", "error", &cacheaside.PanicError{Value: p, Stack: debug.Stack()})
	}
	return a
}

// ill records a failure, and raises one alert when the failures have lasted for AlertAfter. It
// returns the number of consecutive failures.
func (a *alarm) ill(what string, err error) int {
	a.note(func(s *Stats) { s.Failures, s.LastError = s.Failures+1, err })
	f, lasts := a.ills.Failed(what, err)
	if lasts {
		a.give(Alert{What: what, Err: err})
	}
	return f.Times
}

// well records that something works.
func (a *alarm) well(what string) {
	if f, over := a.ills.Works(what); over {
		a.options.Logger.Info("canal: it works again", "what", what, "failed", f.Times, "for", time.Since(f.Since).Round(time.Millisecond))
	}
}

// alert raises an alert, at most once a second for each kind and binding.
func (a *alarm) alert(what, binding string, err error) {
	kind := what + " " + binding
	a.mu.Lock()
	a.stats.LastError = err
	_, due := a.recent.Count(kind)
	if due {
		a.recent.Pass(kind)
	}
	a.mu.Unlock()
	if due {
		a.give(Alert{What: what, Binding: binding, Err: err})
	}
}

// give logs an alert and calls OnAlert. The mutex must not be held: a logger may call Health.
func (a *alarm) give(alert Alert) {
	a.note(func(s *Stats) { s.Alerts++ })
	args := []any{slog.String("what", alert.What), slog.Any("error", alert.Err)}
	if alert.Binding != "" {
		args = append(args, slog.String("binding", alert.Binding))
	}
	a.options.Logger.Warn("canal: alert", args...)
	a.told.Tell(alert)
}

// pause records a failure and sleeps. The delay grows with the number of consecutive failures. It
// returns ctx's error when ctx has ended.
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

// during calls run. Stats and Health show what while it runs, and an alert is raised if it takes
// longer than AlertAfter. One call runs at a time.
func (a *alarm) during(what, binding string, run func() error) error {
	told := make(chan struct{})
	late := time.AfterFunc(a.options.AlertAfter, func() {
		defer close(told)
		a.hangs(what, binding)
	})
	defer func() { // also when it calls runtime.Goexit
		if !late.Stop() {
			<-told
		} else if _, over := a.slow.Works(what); over {
			a.options.Logger.Info("canal: it returns in time again", "what", what)
		}
	}()
	return a.atLength(what, run)
}

// atLength is during without the alert.
func (a *alarm) atLength(what string, run func() error) error {
	a.note(func(s *Stats) { s.Doing, a.since = what, time.Now() })
	defer a.note(func(s *Stats) { s.Doing = "" })
	return run()
}

// hangs raises an alert, once until what has returned in time again.
func (a *alarm) hangs(what, binding string) {
	err := fmt.Errorf("%s has not returned for %v, and blocks the Consumer", what, a.options.AlertAfter)
	if _, first := a.slow.Failed(what, err); !first {
		return
	}
	a.note(func(s *Stats) { s.LastError = err })
	a.give(Alert{What: "hangs", Binding: binding, Err: err})
}

// isClosed reports whether err says that the Consumer's own cache is closed, and not another one,
// which a filter or OnGap has asked.
func (a *alarm) isClosed(err error) bool {
	return errors.Is(err, cacheaside.ErrClosed) && a.closed()
}
