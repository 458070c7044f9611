package consistency

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
)

// RelayOptions are the settings of a Relay. nil, and the zero value, are good defaults.
type RelayOptions struct {
	// Poll is how often a queue in which less was due than a relay does at once (500 items) is
	// asked again. A queue that tells when there is something to do, as a MemoryQueue does, is not
	// polled. Default: 200 ms. At least 1 ms. Lower it if Async writes must show sooner.
	Poll time.Duration

	// ClaimFor is how long items are claimed: the items of a process that is killed are done so
	// much later. A filter or a load function has a third of it for the items that a Relay gives it
	// together; what takes longer is tried again. Default: 30 s. At least 1 s. Lower it to have the
	// items of killed processes done sooner; raise it for filters or reloads that take longer.
	ClaimFor time.Duration

	// AlertAt is how often something must have failed in a row until it is alerted: an item, all
	// that is tried while Redis is out, code of a loader that hangs or panics, or a call of the
	// queue. As delays double, 10 times take about a minute for an item, and 10 s for Redis or the
	// queue. Default: 10. Lower it to know sooner, raise it to know only of troubles that last.
	AlertAt int

	// OnAlert is told of each alert, from a goroutine of its own, for which Run waits in the end.
	// Default: the alert is logged, as it is in any case, and counted (RelayStats.Alerts). Set it
	// if the logs wake nobody.
	OnAlert func(Alert)

	// Logger receives warnings: of alerts, when the queue begins to fail, and when code of a loader
	// hangs or panics; and at level Info, that an alert or the queue's trouble is over. It is shown
	// hashes of keys. Default: slog.Default(), as it is when the Relay is made.
	Logger *slog.Logger
}

// Alert says that a Relay cannot do its work. There is one for all items that fail together, one
// for Redis or the queue when nothing works for want of them, one for items that can never be done,
// one for items whose loader no Relay here has (Item.Admit), and one when Run has ended because the
// cache was closed. The next of a kind comes when everything that the last one was about has
// worked, and something fails again.
type Alert struct {
	// Depth is what was in the queue, a second ago or less; much longer ago if the queue has failed
	// since.
	Depth Depth

	// Attempts is how often it has failed.
	Attempts int

	// Err is the cause of the last failure. It Is cacheaside.ErrRedis if Redis was out of reach. If
	// an item can never be done, since its Key is none, Err is what Key.Check says.
	Err error
}

func (o *RelayOptions) withDefaults() RelayOptions {
	var d RelayOptions
	if o != nil {
		d = *o
	}
	d.Poll = cmp.Or(d.Poll, 200*time.Millisecond)
	d.ClaimFor = cmp.Or(d.ClaimFor, 30*time.Second)
	d.AlertAt = cmp.Or(d.AlertAt, 10)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	return d
}

func (o RelayOptions) check() error {
	switch {
	case o.Poll < time.Millisecond:
		return fmt.Errorf("RelayOptions.Poll %v: at least 1ms", o.Poll)
	case o.ClaimFor < time.Second:
		return fmt.Errorf("RelayOptions.ClaimFor %v: at least 1s", o.ClaimFor)
	case o.AlertAt < 0:
		return fmt.Errorf("RelayOptions.AlertAt %d: at least 1", o.AlertAt)
	}
	return nil
}
