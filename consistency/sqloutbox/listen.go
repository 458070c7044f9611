package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/sharing"
)

const (
	probeEvery     = 30 * time.Second // how long a connection may be silent until it is checked
	probeTimeout   = 5 * time.Second
	connectTimeout = 10 * time.Second
	firstReconnect = time.Second
	lastReconnect  = time.Minute

	// longestWait is the maximum duration of wait. Then the Relay claims, and reads the depth of
	// its queue.
	longestWait = 10 * time.Second
)

// A listener waits for one Relay until items of its outbox may be due. While its connection works,
// it looks at the first due time every listenInterval, and returns at once when a notification
// arrives. Otherwise it returns every poll, as if the Relay polled. Of more than five Relays each
// looks less often, and about five of them return when a notification arrives: it reaches all.
//
// A notification is only a hint. If one is lost, the next look finds the items.
type listener struct {
	box    listened
	poll   time.Duration
	relays func() int // that share the outbox
	log    *slog.Logger
	live   atomic.Bool   // notifications arrive
	hints  chan struct{} // of capacity 1
}

// listened is the part of an Outbox that a listener uses.
type listened interface {
	// receive calls received when it listens, and for each notification. It returns when ctx ends
	// or the connection fails.
	receive(ctx context.Context, received func(payload string)) error

	// notify sends a notification.
	notify(ctx context.Context, payload string) error

	// nextDue returns the time until the first item is due. It returns at most limit.
	nextDue(ctx context.Context, limit time.Duration) (time.Duration, error)
}

// Listen implements consistency.QueueHooks. It returns nil without Options.Listen.
func (o *Outbox) Listen(
	poll time.Duration, relays func() int, log *slog.Logger,
) (run, wait func(context.Context)) {
	if o.listen == nil {
		return nil, nil
	}
	l := newListener(o, poll, relays, log)
	return l.run, l.wait
}

func newListener(box listened, poll time.Duration, relays func() int, log *slog.Logger) *listener {
	return &listener{box: box, poll: poll, relays: relays, log: log, hints: make(chan struct{}, 1)}
}

// hint makes wait return: another process has put items.
func (l *listener) hint() {
	select {
	case l.hints <- struct{}{}:
	default:
	}
}

// wait returns when an item may be due. It takes at least poll, so that a Relay claims many items
// at once if they become due one after another.
func (l *listener) wait(ctx context.Context) {
	pause := l.poll
	if !l.live.Load() {
		pause = sharing.Interval(l.poll, l.relays())
	}
	if retry.Sleep(ctx, pause) != nil {
		return
	}
	interval, end := max(listenInterval, l.poll), time.Now().Add(sharing.Interval(longestWait, l.relays()))
	for l.live.Load() && time.Now().Before(end) {
		select {
		case <-l.hints:
			if sharing.Turn(l.relays()) {
				return
			}
		default:
		}
		until, err := l.box.nextDue(ctx, interval)
		if err != nil || until <= 0 { // the Relay finds the same error
			return
		}
		soon := until < interval
		if !soon {
			until = sharing.Interval(interval, l.relays())
		}
		if l.notified(ctx, until) || soon || ctx.Err() != nil {
			return
		}
	}
}

// notified waits for the duration. If a notification arrives that this one of all relays follows,
// it returns true at once.
func (l *listener) notified(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		case <-l.hints:
			if sharing.Turn(l.relays()) {
				return true
			}
		}
	}
}

// run keeps a connection until ctx ends. It reconnects with growing delays.
func (l *listener) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		running, err := l.connect(ctx)
		if l.live.Swap(false) {
			failures = 0
		}
		if failures++; failures == 1 && ctx.Err() == nil {
			l.log.Warn("cacheaside: a Relay cannot listen for the notifications of its outbox, and polls the table",
				"err", err)
		}
		if running != nil {
			<-running // a function that ignores its context would otherwise run several times
		}
		_ = retry.Sleep(ctx, retry.Delay(failures, firstReconnect, lastReconnect))
	}
}

var errSilent = errors.New("LISTEN has no error, but a notification of the outbox does not arrive: is a pool " +
	"such as PgBouncer in between, which gives each transaction another connection? is it another database or " +
	"server than that of the outbox?")

// A connection is a call of Options.Listen.
type connection struct {
	*listener
	ctx       context.Context
	timeout   time.Duration // of the next step
	listening bool          // LISTEN was executed
	probing   bool          // a notification of its own is on its way
}

// connect listens on one connection, until it fails or is silent. It ends the context of
// Options.Listen, and returns without waiting for it: running receives when that returns.
// If it has returned, running is nil.
func (l *listener) connect(ctx context.Context) (running <-chan error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	payloads := make(chan string)
	ended := start(func() error {
		return l.box.receive(ctx, func(payload string) {
			select {
			case payloads <- payload:
			case <-ctx.Done():
			}
		})
	})
	c := &connection{listener: l, ctx: ctx, timeout: connectTimeout}
	for err == nil {
		select {
		case err := <-ended:
			return nil, cmp.Or(err, errReturned)
		case payload := <-payloads:
			err = c.received(payload)
		case <-time.After(c.timeout):
			err = c.timedOut()
		}
	}
	return ended, err
}

// received handles a notification. The first call means that the connection listens.
func (c *connection) received(payload string) error {
	if !c.listening {
		c.listening = true
		return c.probe()
	}
	c.probing, c.timeout = false, probeEvery
	if !c.live.Swap(true) {
		c.log.Info("cacheaside: a Relay listens for the notifications of its outbox")
	}
	if payload != notifyProbe {
		c.hint()
	}
	return nil
}

// timedOut handles a connection that has been silent for the timeout.
func (c *connection) timedOut() error {
	switch {
	case !c.listening:
		return fmt.Errorf("not connected after %v", connectTimeout)
	case c.probing:
		return errSilent
	}
	return c.probe()
}

// probe sends a notification that the connection should receive.
func (c *connection) probe() error {
	c.probing, c.timeout = true, probeTimeout
	ctx, cancel := context.WithTimeout(c.ctx, notifyTimeout)
	defer cancel()
	return c.box.notify(ctx, notifyProbe)
}

var errReturned = errors.New("sqloutbox.Options.Listen has returned")

// start calls listen, which calls Options.Listen, on its own goroutine. The channel receives its
// error, also after a panic or runtime.Goexit.
func start(listen func() error) <-chan error {
	ended := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if !returned {
				err = limitedlog.Panicked("sqloutbox.Options.Listen", recover())
			}
			ended <- err
		}()
		err = listen()
		returned = true
	}()
	return ended
}

// receive implements listened.
func (o *Outbox) receive(ctx context.Context, received func(payload string)) error {
	return o.listen(ctx, o.channel(), received)
}

// nextDue implements listened.
func (o *Outbox) nextDue(ctx context.Context, limit time.Duration) (time.Duration, error) {
	text, err := o.ownStatements()
	if err != nil {
		return 0, err
	}
	var until int64
	err = o.reading(ctx, func(on querier) error {
		return on.QueryRowContext(ctx, text.nextDue(), o.floor.get()).Scan(&until)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return limit, nil
	}
	return min(limit, time.Duration(until)*time.Microsecond), err
}
