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
	hasSet      point = "set"      // the lock's key, but not yet its expiry
	hasRead     point = "read"     // the stock
	hasWritten  point = "written"  // the stock
	hasCompared point = "compared" // the lock's key, to delete it
)

// fault is what befalls the victim: the first of the buyers, alone in a process of his own, who has
// the lock before all others come.
type fault struct {
	at    point
	crash bool // the process dies; otherwise it is suspended
	until event
	cut   bool // his requests to Redis fail meanwhile, renewals among them
	// Faults that befall others meanwhile.
	jump  bool // the clocks of the first Redis servers (three of five) jump ahead by a minute
	skew  bool // the clocks of the other processes are a minute ahead
	error bool // the first read of the lock by one of the other processes fails
}

// event is what a victim is suspended until.
type event string

const (
	anotherSale event = "another sale" // somebody has bought meanwhile
	second      event = "second"       // somebody has the lock meanwhile; and he is slow too, until there is another sale
)

// faults injects the fault of a process. The zero value injects none.
type faults struct {
	shop   *shop
	plan   fault
	victim bool
	begun  func()        // is called when the fault begins
	pause  time.Duration // at most

	done   atomic.Bool // happens once
	cut    atomic.Bool // requests fail
	failed atomic.Bool // the one read has, here or in another process
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

// wait returns when it has happened, or could have.
func (f *faults) wait(ctx context.Context, until event) {
	count := func() int {
		query := "SELECT COUNT(*) FROM sales WHERE segment = 0" // that of the first buyer
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

// fail says how a command fails.
func (f *faults) fail(ctx context.Context, command string) error {
	isRead := command == "get" || command == "evalsha" // of the lock
	switch {
	case f.cut.Load():
		return errCut
	case f.plan.error && !f.victim && isRead && f.failed.CompareAndSwap(false, true) && f.shop.noteOnce(ctx, "failed"):
		return errBroken
	}
	return nil
}

// now is this process's clock.
func (f *faults) now() time.Time {
	if f.plan.skew && !f.victim {
		return time.Now().Add(time.Minute)
	}
	return time.Now()
}

// faults are a redis.Hook, by which a client's requests fail.

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
