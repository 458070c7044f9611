package main

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// point is a place in the program at which a fault can be injected.
type point string

const (
	hasSet      point = "set"      // the lock's key is set, but not its expiry
	hasRead     point = "read"     // the stock was read
	hasWritten  point = "written"  // the stock was written
	hasCompared point = "compared" // the owner of the lock was compared, before the deletion
)

// fault is a fault of the victim, or of other processes while the victim is suspended. The victim
// is the first buyer. It is alone in its process and acquires the lock before the others start.
type fault struct {
	at    point
	crash bool // the process dies; otherwise it is suspended
	until event
	cut   bool // the victim's requests to Redis fail, including those of the watchdog
	// Faults of other processes.
	jump  bool // the clocks of the first Redis servers (three of five) jump ahead by a minute
	skew  bool // the clocks of the other processes are a minute ahead
	error bool // the first read of the lock by one of the other processes fails
}

// event is the event that ends the suspension of a victim.
type event string

const (
	anotherSale event = "another sale" // another buyer has bought
	second      event = "second"       // another buyer has the lock, and is suspended until there is another sale
)

// faults injects the fault of one process. The zero value injects nothing.
type faults struct {
	shop   *shop
	plan   fault
	victim bool
	begun  func()        // called when the fault begins
	pause  time.Duration // maximum suspension

	done   atomic.Bool // the fault has happened
	cut    atomic.Bool // requests fail
	failed atomic.Bool // the one failing read has happened, in this or another process
}

func (f *faults) at(ctx context.Context, where point) {
	switch {
	case f.victim && where == f.plan.at && f.done.CompareAndSwap(false, true):
		f.strike(ctx)
	case !f.victim && f.plan.until == second && where == hasRead && f.shop.noteOnce(ctx, string(second)):
		f.wait(ctx, anotherSale)
	}
}

func (f *faults) strike(ctx context.Context) {
	if f.plan.crash {
		f.begun()
		os.Exit(0)
	}
	f.cut.Store(f.plan.cut)
	f.begun()
	f.wait(ctx, f.plan.until)
	f.cut.Store(false)
}

// wait waits for the event, for at most the maximum suspension.
func (f *faults) wait(ctx context.Context, until event) {
	count := func() int {
		query := "SELECT COUNT(*) FROM sales WHERE segment = 0" // the segment of the first buyer
		if until == second {
			query = "SELECT COUNT(*) FROM events WHERE name = 'second'"
		}
		n, _ := f.shop.number(ctx, query)
		return n
	}
	before := count()
	if until == second {
		before = 0
	}
	for end := time.Now().Add(f.pause); count() <= before && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(2 * time.Millisecond)
	}
}

var (
	errCut    = errors.New("the network is cut off (injected)")
	errBroken = errors.New("the connection was reset (injected)")
)

// fail returns the error with which a command fails, or nil.
func (f *faults) fail(ctx context.Context, command string) error {
	isRead := command == "get" || command == "evalsha" // reads of the lock
	switch {
	case f.cut.Load():
		return errCut
	case f.plan.error && !f.victim && isRead && f.failed.CompareAndSwap(false, true) && f.shop.noteOnce(ctx, "failed"):
		return errBroken
	}
	return nil
}

// now returns the time by this process's clock.
func (f *faults) now() time.Time {
	if f.plan.skew && !f.victim {
		return time.Now().Add(time.Minute)
	}
	return time.Now()
}

// faults is a redis.Hook that makes the requests of a client fail.

func (f *faults) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.fail(ctx, cmd.Name()); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (f *faults) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := f.fail(ctx, cmd.Name()); err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		return next(ctx, cmds)
	}
}
