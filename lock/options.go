package lock

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/check"
	"github.com/cacheaside/cacheaside/internal/redislock"
)

// LockerOptions are the settings of a Locker. The zero value, and nil, are good defaults.
type LockerOptions struct {
	// Prefix begins the name of every lock in the service, so that programs, and rules of an ACL,
	// can be kept apart. All processes that share locks use the same Prefix. Letters, digits, and
	// "_", ".", ":", "-"; at most 64. Default: "lock:".
	Prefix string

	// TTL is how long a lock outlives its holder: one that was killed, suspended or cut off. A
	// living holder extends it at each third of that. Default: 10 s. From 100 ms to 24 hours. Raise
	// it so that no long pause loses a lock; lower it to wait less for the lock of a dead process.
	TTL time.Duration

	// Timeout bounds each request to each server, whatever the client's own settings; a quarter of
	// the lock's TTL does, too. Default: 500 ms. From 1 ms to 1 minute. Change it if the service is
	// slower or faster to answer.
	Timeout time.Duration

	// Observer is told how long locks are waited for and held; otelcacheaside.New makes one.
	// Default: none. Set it to see these times.
	Observer Observer
}

// Observer is told when the operations of a Locker begin and end. Begin is called when an operation
// begins: op is OpWait or OpHold; locker is LockerOptions.Prefix, for names of locks may be
// private, and many; n is 1. The context that Begin returns is not used. end, never nil, is called
// once when the operation is over: with ErrHeld or any other error of an Acquire, with ErrLost for
// a lock that was lost, or nil. Begin and end must be quick, may be called while the Locker's own
// locks are held, and must neither block nor panic: a panic of theirs is caught, and logged once
// (slog.Default).
type Observer interface {
	Begin(ctx context.Context, op, locker string, n int) (own context.Context, end func(error))
}

// The operations that an Observer is told of.
const (
	OpWait = "lock.wait" // a call of Acquire or TryAcquire
	OpHold = "lock.hold" // a lock that is held, until it is released or lost
)

// Options are the settings of one Acquire. The zero value, and nil, are good defaults.
type Options struct {
	// TTL is LockerOptions.TTL for this lock. Where locks live as long as a session (package
	// zklock), half of the session's time-out is the most. Default: that of the Locker. From 100 ms
	// to 24 hours.
	TTL time.Duration

	// Wait is how long to wait for the lock, before ErrHeld; where it is shorter than
	// LockerOptions.Timeout, ErrHeld may also mean that the service has not answered. Default: as
	// long as the context lives. Set it to bound the waiting, but not the work: the context that is
	// passed to Acquire bounds both.
	Wait time.Duration

	// MaxHold is how long the lock is held at most: then it is no longer extended, and
	// Lease.Context ends with ErrLost. Default: no limit. At least TTL otherwise. Set it to
	// interrupt a section that hangs, rather than have everybody wait for it.
	MaxHold time.Duration

	// Fixed: the lock is not extended by itself, so that it is held for TTL at most, unless Extend
	// is called. Default: it is extended. Set it if the work takes a known time, and is to take no
	// more.
	Fixed bool

	// NoToken: Lease.Token may be 0. Default: false, the lock has a token. Set it for Redlock,
	// where the token costs one more round of requests, if it is checked nowhere.
	NoToken bool
}

func (l *LockerOptions) withDefaults() LockerOptions {
	var d LockerOptions
	if l != nil {
		d = *l
	}
	d.Prefix = cmp.Or(d.Prefix, redislock.DefaultPrefix)
	d.TTL = cmp.Or(d.TTL, 10*time.Second)
	d.Timeout = cmp.Or(d.Timeout, redislock.DefaultTimeout)
	return d
}

const (
	minTTL    = 100 * time.Millisecond
	maxTTL    = 24 * time.Hour
	maxPrefix = 64
	maxName   = 1024
)

func (l LockerOptions) check() error {
	valid := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.:-", r)
	}
	if len(l.Prefix) > maxPrefix || strings.TrimFunc(l.Prefix, valid) != "" {
		return fmt.Errorf("LockerOptions.Prefix %q: only letters, digits, '_', '.', ':' and '-', and at most %d", l.Prefix, maxPrefix)
	}
	return cmp.Or(
		check.Range("LockerOptions.TTL", l.TTL, minTTL, maxTTL),
		check.Range("LockerOptions.Timeout", l.Timeout, time.Millisecond, time.Minute))
}

func (o *Options) withDefaults(l *LockerOptions) Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.TTL = cmp.Or(d.TTL, l.TTL)
	return d
}

func (o Options) check() error {
	err := cmp.Or(
		check.Range("Options.TTL", o.TTL, minTTL, maxTTL),
		check.Range("Options.Wait", o.Wait, 0, 100*365*24*time.Hour))
	if err == nil && o.MaxHold != 0 && o.MaxHold < o.TTL {
		err = fmt.Errorf("Options.MaxHold %v: at least the TTL, %v", o.MaxHold, o.TTL)
	}
	return err
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a lock's name has 1 to %d bytes, not %d", maxName, len(name))
	}
	return nil
}

// drift is what is taken off a lock's life, for clocks that go at different speeds, and for timers
// that are late on a busy machine.
func drift(ttl time.Duration) time.Duration { return ttl/20 + 5*time.Millisecond }
