package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/lock"
)

var lockShowCommand = command{
	name: "lock show", args: "NAME",
	short: "show who holds a lock, and how many wait for it",
	long: `Shows the holders of a lock of NewRedis, of a read-write lock (--kind rw) or of a semaphore
(--kind sem): the label of each (lock.Options.Label), its fencing token, since when it has the
lock, and the time until it expires unless it is extended. It also shows how many processes
wait, or have waited in the last five seconds. It changes nothing. Exit code 3: the lock is
free.`,
	example: "lock show nightly-report",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		l := &locking{tool: t}
		l.register(flags)
		l.registerKind(flags)
		return l.shows
	},
}

var lockBreakCommand = command{
	name: "lock break", args: "NAME",
	short: "take a lock from its holder",
	long: `Takes a lock from its holder, for example one that hangs and cannot be stopped. It asks
first. The holder does not learn of it before its next extension fails, at most a third of
the lock's TTL later; until then another process may hold the lock too. Fencing tokens keep
growing, so a check of them (lock.Guard, lock.SetFenced) refuses the old holder as soon as
the new one has passed it. If a read-write lock or a semaphore has several holders, --token
says which (see "lock show"). Exit code 3: the lock is free.`,
	example: "lock break nightly-report",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		l := &locking{tool: t}
		l.register(flags)
		l.registerKind(flags)
		flags.Int64Var(&l.token, "token", 0, "the `TOKEN` of the holder. Default: the only holder")
		t.askable(flags)
		return l.breaks
	},
}

func (l *locking) registerKind(flags *flag.FlagSet) {
	flags.StringVar(&l.kind, "kind", "lock",
		"the `KIND`: lock, rw for a read-write lock, or sem for a semaphore. Default: lock")
}

// inspector has the methods of lock.Locker, lock.ReadWrite and lock.Semaphore.
type inspector interface {
	Inspect(ctx context.Context, name string) (lock.State, error)
	Break(ctx context.Context, name string, token int64) error
}

// shownHolder is a holder in the output.
type shownHolder struct {
	Label  untrusted `json:"label"`
	Token  int64     `json:"token"`
	Since  time.Time `json:"since"`
	LeftMs int64     `json:"left_ms"` // until the lock expires, unless its holder extends it
	Writer bool      `json:"writer,omitempty"`
}

type shownLock struct {
	Hash    string        `json:"hash"`
	Holders []shownHolder `json:"holders"`
	Waiting int           `json:"waiting"`
}

func (l *locking) checkName(command string, args []string) error {
	switch err := l.checkFlags(command); {
	case err != nil:
		return err
	case len(args) != 1:
		return usagef("%s: one NAME, not %d arguments", command, len(args))
	case args[0] == "" || len(args[0]) > 1024:
		return usagef("%s: NAME: 1 to 1024 bytes", command)
	case l.kind != "lock" && l.kind != "rw" && l.kind != "sem":
		return usagef("%s: --kind: lock, rw or sem", command)
	}
	return nil
}

// onLock calls f with the locks of the kind, and the state of the lock with this name. If it is
// free, onLock returns errAbsent.
func (l *locking) onLock(ctx context.Context, name string, f func(context.Context, inspector, shownLock) error) error {
	return l.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		locker, err := lock.NewRedis(rdb, &lock.Options{Prefix: l.lockPrefix, Timeout: min(l.timeout, time.Minute)})
		if err != nil {
			return err
		}
		defer locker.Close() //nolint:errcheck // it holds no lock
		var locks inspector = locker
		switch l.kind {
		case "rw":
			locks, err = lock.NewReadWrite(locker)
		case "sem":
			locks, err = lock.NewSemaphore(locker, 1)
		}
		if err != nil {
			return err
		}
		state, err := locks.Inspect(ctx, name)
		if conn.IsReply(err) {
			err = fmt.Errorf("nothing was changed: %w", err)
		}
		if err != nil {
			return err
		}
		shown := shownLock{Hash: fmt.Sprintf("#%016x", xxhash.Sum64String(l.lockPrefix+name)), Waiting: state.Waiting,
			Holders: []shownHolder{}}
		for _, h := range state.Holders {
			shown.Holders = append(shown.Holders, shownHolder{Label: untrusted(h.Label), Token: h.Token,
				Since: h.Since.UTC(), LeftMs: h.Left.Milliseconds(), Writer: h.Write})
		}
		if len(shown.Holders) == 0 {
			l.complain(fmt.Errorf("the lock %s is free", shown.Hash))
			return errAbsent
		}
		return f(ctx, locks, shown)
	})
}

func (l *locking) shows(ctx context.Context, args []string) error {
	if err := l.checkName("lock show", args); err != nil {
		return err
	}
	return l.onLock(ctx, args[0], func(_ context.Context, _ inspector, shown shownLock) error {
		return l.show(shown, func(row func(...any)) {
			row("HOLDER", "TOKEN", "SINCE", "FREE", "")
			for _, h := range shown.Holders {
				note := ""
				if h.Writer {
					note = "writes"
				}
				left := from(time.Duration(h.LeftMs) * time.Millisecond)
				row(h.name(), h.Token, h.Since.Format(time.RFC3339), left, note)
			}
			row(fmt.Sprintf("%d wait for it", shown.Waiting), "", "", "", "")
		})
	})
}

func (h shownHolder) name() string {
	if h.Label == "" {
		return "a process without a label"
	}
	return h.Label.String()
}

// one returns the holder to break.
func (l *locking) one(shown shownLock) (shownHolder, error) {
	for _, h := range shown.Holders {
		if h.Token == l.token || l.token == 0 && len(shown.Holders) == 1 {
			return h, nil
		}
	}
	if l.token == 0 {
		return shownHolder{}, usagef("lock break: the lock has %d holders: see --token", len(shown.Holders))
	}
	return shownHolder{}, errors.New("nothing was changed: no holder has this token")
}

func (l *locking) breaks(ctx context.Context, args []string) error {
	if err := l.checkName("lock break", args); err != nil {
		return err
	}
	return l.onLock(ctx, args[0], func(ctx context.Context, locks inspector, shown shownLock) error {
		h, err := l.one(shown)
		if err != nil {
			return err
		}
		about := fmt.Sprintf(`The lock %s is held by %s, with the token %d, and lives for %s more unless it is extended.
Its holder will lose it, and will notice only when its next extension fails; until then it continues as if it held the
lock. Another process can acquire the lock immediately, with a greater token.`,
			shown.Hash, h.name(), h.Token, short(time.Duration(h.LeftMs)*time.Millisecond))
		if err := l.ask(ctx, about); err != nil {
			return err
		}
		switch err := locks.Break(ctx, args[0], h.Token); {
		case errors.Is(err, lock.ErrReleased):
			return errors.New("nothing was changed: the lock was released, or another holder has acquired it")
		case err != nil:
			return err
		}
		result := struct {
			Hash  string    `json:"hash"`
			Token int64     `json:"token"`
			Label untrusted `json:"label"`
		}{shown.Hash, h.Token, h.Label}
		return l.show(result, func(row func(...any)) {
			row(fmt.Sprintf("the lock %s is free of this holder; its token was %d", shown.Hash, h.Token))
		})
	})
}
