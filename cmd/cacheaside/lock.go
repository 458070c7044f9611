package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
)

var lockLsCommand = command{
	name: "lock ls", args: "",
	short: "list the locks of package lock in Redis",
	long: `Lists the locks of NewRedis that are held, not those of Redlock: a hash of the name as
errors show it (the name with --show-names), the time until the lock expires, its fencing
token, and its holder. It scans all keys of the server, which
takes a while if there are many: see --timeout. The holder is its label (lock.Options.Label),
or the id of its request. For read-write locks and semaphores see "lock show". It changes
nothing.`,
	example: "lock ls --lock-prefix lock:",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		l := &locking{tool: t}
		l.register(flags)
		flags.BoolVar(&l.names, "show-names", false, "show names, not hashes")
		flags.BoolVar(&l.all, "all", false, "also released locks, whose tokens Redis keeps for a minute")
		flags.IntVar(&l.limit, "limit", 100, "the `NUMBER` of locks to show, at most 10000. Default: 100")
		return l.ls
	},
}

// locking is one run of the commands.
type locking struct {
	*tool
	lockPrefix string
	names, all bool
	limit      int
	kind       string
	token      int64
}

func (l *locking) register(flags *flag.FlagSet) {
	flags.StringVar(&l.lockPrefix, "lock-prefix", "lock:",
		"the `PREFIX` of the locks (lock.Options.Prefix). Default: lock:")
}

// found is a lock in the output.
type found struct {
	Hash   string     `json:"hash"`
	Name   *untrusted `json:"name,omitempty"`
	Held   bool       `json:"held"`
	LeftMs int64      `json:"left_ms"` // until the lock expires, unless its holder extends it
	Token  int64      `json:"token"`
	Holder string     `json:"holder,omitempty"`
	Waited bool       `json:"waited_for"`
	Flaw   string     `json:"flaw,omitempty"`

	name untrusted
	lock redislock.Lock
}

type foundLocks struct {
	Locks []found `json:"locks"`
	More  bool    `json:"more"`
}

func (l *locking) checkFlags(name string) error {
	ok := l.lockPrefix != "" && len(l.lockPrefix) <= 64 &&
		strings.Trim(strings.ToLower(l.lockPrefix), "abcdefghijklmnopqrstuvwxyz0123456789_.:-") == ""
	if !ok {
		return usagef("%s: --lock-prefix: letters, digits, '_', '.', ':' and '-', at most 64", name)
	}
	return nil
}

func (l *locking) ls(ctx context.Context, args []string) error {
	switch err := l.checkFlags("lock ls"); {
	case err != nil:
		return err
	case len(args) > 0:
		return usagef("lock ls: it has no arguments")
	case l.limit < 1 || l.limit > 10000:
		return usagef("lock ls: --limit %d: from 1 to 10000", l.limit)
	}
	ctx, cancel := l.limited(ctx)
	defer cancel()
	return l.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		all := foundLocks{Locks: []found{}}
		failed := l.scan(ctx, rdb, &all)
		slices.SortFunc(all.Locks, func(a, b found) int { return cmp.Compare(a.name, b.name) })
		if err := l.show(all, all.rows); err != nil {
			return err
		}
		if failed != nil && len(all.Locks) > 0 {
			return fmt.Errorf("the list is not complete: %w", failed)
		}
		return failed
	})
}

// glob returns the pattern for names that begin with prefix, which contains no special
// characters.
func glob(prefix string) string { return prefix + "{*}" }

func (l *locking) scan(ctx context.Context, rdb redis.UniversalClient, all *foundLocks) error {
	nodes, err := masters(ctx, rdb)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		var cursor uint64
		for {
			var names []string
			if names, cursor, err = node.Scan(ctx, cursor, glob(l.lockPrefix), 1000).Result(); err != nil {
				return err
			}
			if err := l.look(ctx, node, names, all); err != nil || all.More {
				return err
			}
			if cursor == 0 {
				break
			}
		}
	}
	return nil
}

// longestLock is more than the maximum length of a lock in Redis.
const longestLock = 512

// look adds the keys that are locks. SCAN may return a key twice.
func (l *locking) look(ctx context.Context, node *redis.Client, names []string, all *foundLocks) error {
	if len(names) == 0 {
		return nil
	}
	pipe := node.Pipeline()
	now := pipe.Time(ctx)
	values := make([]*redis.StringCmd, len(names))
	for i, name := range names {
		values[i] = pipe.GetRange(ctx, name, 0, longestLock)
	}
	if _, err := pipe.Exec(ctx); err != nil && !conn.IsReply(err) {
		return err
	}
	if now.Err() != nil {
		return now.Err()
	}
	for i, key := range names {
		name, ok := redislock.Name(l.lockPrefix, key)
		if !ok || slices.ContainsFunc(all.Locks, func(f found) bool { return string(f.name) == name }) {
			continue
		}
		f, ok := l.found(name, values[i], now.Val())
		if !ok {
			continue
		}
		if len(all.Locks) == l.limit {
			all.More = true
			return nil
		}
		all.Locks = append(all.Locks, f)
	}
	return nil
}

// found reads a lock. ok is false if the lock is not shown.
func (l *locking) found(name string, value *redis.StringCmd, now time.Time) (f found, ok bool) {
	f = found{Hash: fmt.Sprintf("#%016x", xxhash.Sum64String(l.lockPrefix+name)), name: untrusted(name)}
	if l.names {
		f.Name = &f.name
	}
	if value.Err() == nil {
		if value.Val() == "" {
			return f, false // it has just expired
		}
		f.lock, ok = redislock.Parse(value.Val())
	}
	if !ok {
		f.Flaw = "the key does not hold a lock of NewRedis"
		return f, true
	}
	f.Held, f.Token, f.Waited = f.lock.Held(now), f.lock.Token, f.lock.Waited
	if f.Held {
		f.Holder, f.LeftMs = f.lock.Holder, f.lock.Until.Sub(now).Milliseconds()
	}
	return f, f.Held || l.all
}

func (f foundLocks) rows(row func(cells ...any)) {
	row("LOCK", "FREE", "TOKEN", "HOLDER", "")
	for _, one := range f.Locks {
		name := one.Hash
		if one.Name != nil {
			name = one.Name.String()
		}
		switch {
		case one.Flaw != "":
			row(name, "", "", "", one.Flaw)
		case !one.Held:
			row(name, "now", one.Token, "", "")
		default:
			if _, label, ok := strings.Cut(one.Holder, "="); ok {
				one.Holder = label
			}
			note := ""
			if one.Waited {
				note = "others wait for it"
			}
			row(name, from(time.Duration(one.LeftMs)*time.Millisecond), one.Token, quoted(one.Holder), note)
		}
	}
	if f.More {
		row("… and more: see --limit", "", "", "", "")
	}
}
