package canal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside"
)

// doing is what a Consumer waits for.
type doing struct {
	what    string // as people read it
	binding string
	since   time.Time
}

// during has Stats and Health tell of what runs, and alerts if it has not returned when AlertAfter
// is over.
func (a *alarm) during(what, binding string, run func() error) error {
	told := make(chan struct{})
	late := time.AfterFunc(a.options.AlertAfter, func() {
		defer close(told)
		a.hangs(what, binding)
	})
	defer func() { // also when it calls runtime.Goexit
		if late.Stop() {
			a.isSwift(what)
		} else {
			<-told
		}
	}()
	return a.atLength(what, binding, run)
}

// atLength is during for what may take long.
func (a *alarm) atLength(what, binding string, run func() error) error {
	before := a.counters.doing.Swap(&doing{what, binding, time.Now()})
	defer a.counters.doing.Store(before)
	return run()
}

// hangs alerts, once until it has been swift again.
func (a *alarm) hangs(what, binding string) {
	err := fmt.Errorf("%s has not returned for %v, and blocks the Consumer", what, a.options.AlertAfter)
	if _, first := a.slow.Failed(what, err); !first {
		return
	}
	a.counters.lastError.Store(&err)
	a.give(Alert{What: "hangs", Binding: binding, Err: err})
}

func (a *alarm) isSwift(what string) {
	if _, over := a.slow.Works(what); over {
		a.options.Logger.Info("canal: it returns in time again", "what", what)
	}
}

// longDoing is an error if it has been at something for longer than within.
func (c *Consumer) longDoing(within time.Duration) error {
	d := c.doing.Load()
	if d == nil || time.Since(d.since) <= within {
		return nil
	}
	return fmt.Errorf("canal: %s has not returned for %v, and blocks the Consumer", d.what, time.Since(d.since).Round(time.Millisecond))
}

// isClosed tells whether err is that of the Consumer's own cache, and not of another one, which a
// filter or OnGap has asked.
func (a *alarm) isClosed(err error) bool {
	return errors.Is(err, cacheaside.ErrClosed) && a.closed()
}
