package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/keys"
)

var invalidateCommand = command{
	name: "invalidate", args: "LOADER [KEY... | -]",
	short: "invalidate keys or groups of a loader, or all of it",
	long: `Invalidates keys of a loader as Loader.Invalidate does: deletes them in Redis, voids loads
that are under way, and announces them to all processes. With "-" it reads the keys from
standard input, one a line, each at most 64 KiB; that needs --yes. With --all it
invalidates all keys of the loader, of all its versions, as Loader.InvalidateAll does. With
--group the KEYs are names of groups, which it invalidates as Loader.InvalidateGroup does.
It asks first, and warns if Redis does not know the loader, or its groups: then LOADER or
--prefix may be wrong. Redis does not know versions. If the caches set Options.ReplicaLag, give
the same time as --replica-lag; groups do not need it.`,
	example: "invalidate user 42 43",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		i := &invalidating{tool: t}
		t.askable(flags)
		flags.StringVar(&i.version, "version", "1", "the `VERSION` of the loader (LoaderOptions.Version). Default: 1")
		flags.BoolVar(&i.all, "all", false, "all keys of the loader")
		flags.BoolVar(&i.group, "group", false, "the KEYs are names of groups (LoaderOptions.Groups), of all versions")
		flags.DurationVar(&i.lag, "replica-lag", 0,
			"hold the keys for this `TIME`: Options.ReplicaLag of the caches. Default: none")
		return i.run
	},
}

// invalidating is one run of the command.
type invalidating struct {
	*tool
	version string
	all     bool
	group   bool
	lag     time.Duration

	done int
}

const (
	longestLine = 64 << 10
	keysAtOnce  = 1000
)

func (i *invalidating) run(ctx context.Context, args []string) error {
	if err := i.checkArgs(args); err != nil {
		return err
	}
	loader, texts := args[0], args[1:]
	fromInput := len(texts) == 1 && texts[0] == "-"
	var about string
	switch {
	case i.all:
		about = fmt.Sprintf("All keys of the loader %s, of all versions, will be invalidated, under the prefix %s: "+
			"the next read of each loads it from the database.", loader, i.prefix)
	case fromInput && !i.yes:
		return usagef("invalidate: nothing was changed: with keys on standard input a confirmation is impossible; " +
			"give --yes")
	case i.group && fromInput:
		about = fmt.Sprintf("The groups of the loader %s that standard input names will be invalidated, under the "+
			"prefix %s.", loader, i.prefix)
	case i.group:
		about = fmt.Sprintf("%s of the loader %s, of all versions, will be invalidated, under the prefix %s: the "+
			"next read of each of their keys loads it from the database.", count(len(texts), "group"), loader, i.prefix)
	case fromInput:
		about = fmt.Sprintf("The keys of the loader %s, version %s, that standard input names will be invalidated, "+
			"under the prefix %s.", loader, i.version, i.prefix)
	default:
		about = fmt.Sprintf("%s of the loader %s, version %s, will be invalidated, under the prefix %s: the next "+
			"read of each loads it from the database.", count(len(texts), "key"), loader, i.version, i.prefix)
	}
	rdb, err := i.openRedis(ctx) // reports a wrong address before it asks for a confirmation
	if err != nil {
		return err
	}
	defer rdb.Close() //nolint:errcheck // nothing is to be done about it
	i.warnUnknown(ctx, rdb, loader, i.group)
	if err := i.ask(ctx, about); err != nil {
		return err
	}
	err = i.invalidate(ctx, rdb, loader, texts, fromInput)
	if err != nil && i.done > 0 {
		err = fmt.Errorf("%s invalidated, the others perhaps not: %w", i.count(), err)
	}
	if err != nil {
		return i.redisError(err)
	}
	result := struct {
		Loader string `json:"loader"`
		All    bool   `json:"all"`
		Group  bool   `json:"group"` // Keys is the number of groups
		Keys   int    `json:"keys"`
	}{loader, i.all, i.group, i.done}
	return i.show(result, func(row func(...any)) {
		if i.all {
			row("invalidated all keys of " + loader)
		} else {
			row(fmt.Sprintf("invalidated %s of %s", i.count(), loader))
		}
	})
}

// count returns the number of keys or groups that were invalidated.
func (i *invalidating) count() string {
	if i.group {
		return count(i.done, "group")
	}
	return count(i.done, "key")
}

// key returns the Key of an argument or a line.
func (i *invalidating) key(loader, text string) cacheaside.Key {
	if i.group {
		return cacheaside.Key{Loader: loader, Text: text, Group: true}
	}
	return cacheaside.Key{Loader: loader, Version: i.version, Text: text}
}

func (i *invalidating) checkArgs(args []string) error {
	switch {
	case len(args) == 0:
		return usagef("invalidate: LOADER is missing")
	case !keys.ValidName(args[0]):
		return usagef("invalidate: LOADER: letters, digits, '_', '.' and '-'")
	case !keys.ValidName(i.version):
		return usagef("invalidate: --version: letters, digits, '_', '.' and '-'")
	case i.lag < 0 || i.lag > time.Minute:
		return usagef("invalidate: --replica-lag %v: from 0 to %v", i.lag, time.Minute)
	case i.all && (len(args) > 1 || i.group):
		return usagef("invalidate: --all, or keys or groups, not both")
	case !i.all && len(args) == 1:
		return usagef("invalidate: name keys, or give --all")
	}
	for _, text := range args[1:] {
		if text == "-" && len(args) > 2 {
			return usagef("invalidate: \"-\" stands alone, for keys from standard input; give a key of that name there")
		}
		if text == "" && i.group {
			return usagef("invalidate: --group: the name of a group is empty")
		}
	}
	return nil
}

func (i *invalidating) invalidate(
	ctx context.Context, rdb redis.UniversalClient, loader string, texts []string, fromInput bool,
) error {
	// an invalidation takes at most four times RedisTimeout
	cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: i.prefix, MemoryBytes: -1, ReplicaLag: i.lag,
		RedisTimeout: max(i.timeout/4, time.Millisecond), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer cache.Close()
	if i.all {
		return i.send(ctx, cache, cacheaside.Key{Loader: loader, All: true})
	}
	if fromInput {
		return i.lines(ctx, cache, loader)
	}
	var all []cacheaside.Key
	for _, text := range texts {
		all = append(all, i.key(loader, text))
	}
	return i.send(ctx, cache, all...)
}

// send invalidates keys, and counts those that succeed.
func (i *invalidating) send(ctx context.Context, cache *cacheaside.Cache, all ...cacheaside.Key) error {
	ctx, cancel := i.limited(ctx)
	defer cancel()
	err := cache.InvalidateKeys(ctx, all...)
	failed, partly := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err)
	switch {
	case err == nil:
		i.done += len(all)
	case partly:
		i.done += len(all) - len(failed.Errs)
	}
	return err
}

// lines invalidates the keys of standard input while it reads them.
func (i *invalidating) lines(ctx context.Context, cache *cacheaside.Cache, loader string) error {
	lines := bufio.NewScanner(i.stdin)
	lines.Buffer(make([]byte, 4096), longestLine+1)
	var some []cacheaside.Key
	number := 0
	for lines.Scan() {
		number++
		switch text := lines.Text(); {
		case text == "":
			return errors.Join(usagef("invalidate: line %d is empty", number), i.flush(ctx, cache, &some))
		case len(text) > longestLine:
			return errors.Join(usagef("invalidate: line %d is longer than %d bytes", number, longestLine),
				i.flush(ctx, cache, &some))
		default:
			some = append(some, i.key(loader, text))
		}
		if len(some) == keysAtOnce {
			if err := i.flush(ctx, cache, &some); err != nil {
				return err
			}
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return errors.Join(usagef("invalidate: line %d is longer than %d bytes", number+1, longestLine),
			i.flush(ctx, cache, &some))
	case err != nil:
		return fmt.Errorf("reading standard input: %w", errors.Join(err, i.flush(ctx, cache, &some)))
	}
	return i.flush(ctx, cache, &some)
}

func (i *invalidating) flush(ctx context.Context, cache *cacheaside.Cache, some *[]cacheaside.Key) error {
	if len(*some) == 0 {
		return nil
	}
	err := i.send(ctx, cache, *some...)
	*some = (*some)[:0]
	return err
}
