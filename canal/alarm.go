package canal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
	maxSetups  = 10 // texts of setup errors that raise an alert, until the Source works
)

// alarm counts failures and raises alerts.
type alarm struct {
	options *Options
	figures
	closed   func() bool      // reports whether the cache is closed
	failing  limitedlog.Alarm // dependencies that have failed since they last worked
	slow     limitedlog.Alarm // calls that did not return in time when last made
	notifier limitedlog.Notifier[Alert]

	recent limitedlog.Limit[string] // alerts, by kind and binding; guarded by mu
	setups []string                 // texts of the setup errors since the Source last worked; used by Run only
}

func newAlarm(options *Options, closed func() bool) *alarm {
	a := &alarm{options: options, closed: closed}
	a.failing.After = options.AlertAfter
	a.recent.Quiet = time.Second
	a.notifier.To = options.OnAlert
	a.notifier.Panicked = func(p any) {
		options.Logger.Warn("canal: Options.OnAlert panicked", "error", limitedlog.Panicked("Options.OnAlert", p))
	}
	return a
}

// failed records a failure. It raises one alert when the failures have lasted for AlertAfter. It
// returns the number of consecutive failures.
func (a *alarm) failed(kind AlertKind, err error) int {
	a.update(func(s *Stats) { s.Failures, s.LastError = s.Failures+1, err })
	f, lasts := a.failing.Failed(string(kind), err)
	if lasts {
		a.raise(Alert{Kind: kind, Err: err})
	}
	return f.Times
}

// failedSetup records that the Source is not set up, and sleeps as backoff does. It raises an alert
// for each new text of the error: after one statement was executed, another one can be missing.
func (a *alarm) failedSetup(ctx context.Context, err error) {
	a.update(func(s *Stats) { s.Failures, s.LastError = s.Failures+1, err })
	_, _ = a.failing.Works(string(AlertSource)) // it replies, so this is the cause
	f, _ := a.failing.Failed(string(AlertSetup), err)
	if text := err.Error(); len(a.setups) < maxSetups && !slices.Contains(a.setups, text) {
		a.setups = append(a.setups, text)
		a.raise(Alert{Kind: AlertSetup, Err: err})
	}
	_ = retry.Sleep(ctx, retry.Delay(f.Times, firstPause, longPause))
}

// recovered records that a dependency works, and logs it if an alert was raised.
func (a *alarm) recovered(kind AlertKind) {
	if f, over := a.failing.Works(string(kind)); over || kind == AlertSetup && f.Times > 0 {
		a.options.Logger.Info("canal: working again", "kind", kind, "failed", f.Times, "for",
			time.Since(f.Since).Round(time.Millisecond))
	}
}

// alert raises an alert, at most once per second for each kind and Binding.
func (a *alarm) alert(kind AlertKind, binding string, err error) {
	name := string(kind) + " " + binding
	a.mu.Lock()
	a.stats.LastError = err
	_, due := a.recent.Count(name)
	if due {
		a.recent.Pass(name)
	}
	a.mu.Unlock()
	if due {
		a.raise(Alert{Kind: kind, Binding: binding, Err: err})
	}
}

// raise logs an alert and calls OnAlert. The caller must not hold the mutex, because a logger may
// call Health.
func (a *alarm) raise(alert Alert) {
	a.update(func(s *Stats) { s.Alerts++ })
	args := []any{slog.String("kind", string(alert.Kind)), slog.Any("error", alert.Err)}
	if alert.Binding != "" {
		args = append(args, slog.String("binding", alert.Binding))
	}
	a.options.Logger.Warn("canal: alert", args...)
	a.notifier.Notify(alert)
}

// backoff records a failure and sleeps. The delay grows with the number of consecutive failures.
// backoff returns ctx's error if ctx has ended.
func (a *alarm) backoff(ctx context.Context, kind AlertKind, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	times := a.failed(kind, err)
	if kind == AlertGap && times == 1 { // OnGap may take long, so the first failure is logged
		a.options.Logger.Warn("canal: Options.OnGap failed and will be called again; all changes wait for it",
			"error", err)
	}
	_ = retry.Sleep(ctx, retry.Delay(times, firstPause, longPause))
	return ctx.Err()
}

// retryUntilDone calls try until it succeeds, ctx ends, or the cache is closed.
func (a *alarm) retryUntilDone(ctx context.Context, kind AlertKind, try func(context.Context) error) error {
	for {
		err := guarded(ctx, try)
		if err == nil {
			a.recovered(kind)
			return nil
		}
		if a.isClosed(err) {
			return err
		}
		if err := a.backoff(ctx, kind, err); err != nil {
			return err
		}
	}
}

// guarded calls f, and returns a panic of f as an error.
func guarded(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f(ctx)
}

// track runs f, reports it in Stats and Health while it runs, and raises an alert if it takes
// longer than AlertAfter. One call runs at a time.
func (a *alarm) track(call, binding string, run func() error) error {
	alerted := make(chan struct{})
	late := time.AfterFunc(a.options.AlertAfter, func() {
		defer close(alerted)
		a.hangs(call, binding)
	})
	defer func() { // also if run calls runtime.Goexit
		if !late.Stop() {
			<-alerted
		} else if _, over := a.slow.Works(call); over {
			a.options.Logger.Info("canal: call returns in time again", "call", call)
		}
	}()
	return a.trackLong(call, run)
}

// trackLong is track without the alert, for calls that may take long.
func (a *alarm) trackLong(call string, run func() error) error {
	a.update(func(s *Stats) { s.WaitingFor, a.since = call, time.Now() })
	defer a.update(func(s *Stats) { s.WaitingFor = "" })
	return run()
}

// hangs raises an alert for a call that has not returned in time. It raises no further one until
// a call of the same name has returned in time.
func (a *alarm) hangs(call, binding string) {
	err := fmt.Errorf("%s has not returned for %v, and blocks the Consumer", call, a.options.AlertAfter)
	if _, first := a.slow.Failed(call, err); !first {
		return
	}
	a.update(func(s *Stats) { s.LastError = err })
	a.raise(Alert{Kind: AlertHangs, Binding: binding, Err: err})
}

// isClosed reports whether err was returned because the Consumer's own cache is closed. A filter
// or OnGap may return the same error for another cache.
func (a *alarm) isClosed(err error) bool {
	return errors.Is(err, cacheaside.ErrClosed) && a.closed()
}
