package lock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Options holds the settings of a Locker. A nil pointer and the zero value mean the
// defaults.
type Options struct {
	// Prefix is the beginning of the name of every lock in the service. It separates programs
	// from each other, and ACL rules can refer to it. All processes that share locks must use the
	// same Prefix. Letters, digits, "_", ".", ":" and "-", at most 64. Default: "lock:".
	Prefix string

	// TTL is how long a lock stays locked after its holder was killed, suspended or disconnected.
	// A live holder extends it after each third of the TTL. Default: 10 s. From 100 ms to 24
	// hours. Raise it so that no long pause loses a lock; lower it to wait less for the lock of a
	// dead process.
	TTL time.Duration

	// Timeout limits each request to each server, independent of the client's own settings. A
	// request also takes at most a quarter of the lock's TTL. Default: 500 ms. From 1 ms to 1
	// minute. Change it if the service replies slower or faster.
	Timeout time.Duration

	// Label describes this process to others: Inspect returns it, such as the name of the host. At
	// most 64 letters, digits, "_", ".", ":", "@", "/" and "-". Default: none. Package redlock and
	// zklock ignore it.
	Label string

	// Observer measures how long callers wait for locks and hold them; otelcacheaside.New returns
	// one. Default: none.
	Observer Observer

	// Logger logs the first panic of the Observer, and that the server of NewRedis evicts keys.
	// Records contain no names of locks. Default: slog.Default(). Use
	// slog.New(slog.DiscardHandler) for no logs.
	Logger *slog.Logger
}

// Observer is notified when the operations of a Locker begin and end. Begin is called at the
// beginning: op is OpWait or OpHold; locker is Options.Prefix, because names of locks may
// be private and numerous; n is 1. The returned context is not used. end, which must not be nil,
// is called once at the end of the operation. Its error is any error of an Acquire, such as
// ErrHeld; ErrLost for a lock that was lost; or nil.
//
// Begin and end may be called while internal mutexes of the Locker are held. They must be fast
// and must not block or panic. A panic is recovered and logged once (Options.Logger).
type Observer interface {
	Begin(ctx context.Context, op, locker string, n int) (spanned context.Context, end func(error))
}

// Operations that an Observer is notified of.
const (
	OpWait = "lock.wait" // a call of Acquire or TryAcquire
	OpHold = "lock.hold" // a lock, from its acquisition until it is released or lost
)

// AcquireOptions holds the settings of one Acquire. A nil pointer and the zero value mean the
// defaults.
type AcquireOptions struct {
	// TTL overrides Options.TTL for this lock. In ZooKeeper (package zklock), the effective
	// TTL is at most half of the session timeout. Default: that of the Locker. From 100 ms to 24
	// hours.
	TTL time.Duration

	// Wait is the maximum time to wait for the lock; then Acquire returns ErrHeld, or ErrNoReply if
	// the service has not replied at all. In ZooKeeper, and in Redlock if the votes are split, that
	// is ErrHeld, too. Default: no limit except the context. Set it to limit the waiting but not
	// the work: the context that is passed to Acquire limits both.
	Wait time.Duration

	// Try makes Acquire return ErrHeld at once if it cannot get the lock; see TryAcquire. Default:
	// false.
	Try bool

	// MaxHold is the maximum time to hold the lock. Then the lock is no longer extended, and
	// Lease.Context ends with ErrLost. Default: no limit. Otherwise at least TTL. Set it to
	// interrupt work that hangs, so that other callers need not wait for it.
	MaxHold time.Duration

	// Fixed disables the watchdog, so the lock is held for at most TTL unless Lease.Extend is
	// called. Default: false. Set it if the work takes a known time and must not take longer.
	Fixed bool

	// NoToken permits Lease.Token to be 0. Default: false. Set it for Redlock if no resource
	// checks the token, because a token costs a second round of requests there.
	NoToken bool
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, redislock.DefaultPrefix)
	d.TTL = cmp.Or(d.TTL, 10*time.Second)
	d.Timeout = cmp.Or(d.Timeout, redislock.DefaultTimeout)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	return d
}

const (
	minTTL    = 100 * time.Millisecond
	maxTTL    = 24 * time.Hour
	maxPrefix = 64
	maxName   = 1024
)

func (o Options) check() error {
	valid := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.:-", r)
	}
	if len(o.Prefix) > maxPrefix || strings.TrimFunc(o.Prefix, valid) != "" {
		return fmt.Errorf("Options.Prefix %q: must have only letters, digits, '_', '.', ':' and '-', at most %d",
			o.Prefix, maxPrefix)
	}
	label := func(r rune) bool { return valid(r) || r == '@' || r == '/' }
	if len(o.Label) > maxPrefix || strings.TrimFunc(o.Label, label) != "" {
		return fmt.Errorf("Options.Label %q: must have only letters, digits, '_', '.', ':', '@', '/' and '-', at most "+
			"%d", o.Label, maxPrefix)
	}
	return cmp.Or(
		wording.Range("Options.TTL", o.TTL, minTTL, maxTTL),
		wording.Range("Options.Timeout", o.Timeout, time.Millisecond, time.Minute))
}

func (a *AcquireOptions) withDefaults(l *Options) AcquireOptions {
	var d AcquireOptions
	if a != nil {
		d = *a
	}
	d.TTL = cmp.Or(d.TTL, l.TTL)
	return d
}

func (a AcquireOptions) check() error {
	err := cmp.Or(
		wording.Range("AcquireOptions.TTL", a.TTL, minTTL, maxTTL),
		wording.Range("AcquireOptions.Wait", a.Wait, 0, 100*365*24*time.Hour))
	if err == nil && a.MaxHold != 0 && a.MaxHold < a.TTL {
		err = fmt.Errorf("AcquireOptions.MaxHold %v: must be at least the TTL, %v", a.MaxHold, a.TTL)
	}
	return err
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the name of a lock must have 1 to %d bytes, not %d", maxName, len(name))
	}
	return nil
}

// drift returns the part of the TTL that a holder does not use, because clocks run at different
// rates and timers are late on a busy machine.
func drift(ttl time.Duration) time.Duration { return ttl/20 + 5*time.Millisecond }
