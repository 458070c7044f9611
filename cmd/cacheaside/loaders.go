package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/invalidation"
)

var loaderLsCommand = command{
	name: "loader ls", args: "",
	short: "list the loaders that Redis knows under the prefix",
	long: `Lists the loaders that processes have read through, under the prefix, with the time of
their last InvalidateAll, or of their first read if there was none since Redis last lost its
data. Redis also keeps the names of loaders that no process has any more. It changes nothing.
Exit code 3: Redis knows no loader under the prefix.`,
	example: "loader ls --json",
	prepare: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error { return t.listLoaders },
}

// shownLoader is a loader in the output.
type shownLoader struct {
	Name  untrusted `json:"name"`
	Since *string   `json:"since"` // the time of its generation; nil: unreadable

	at time.Time
}

func (s *shownLoader) since() string {
	if s.Since == nil {
		return "unreadable"
	}
	return moment(s.at, time.Now())
}

func (t *tool) listLoaders(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("loader ls: it has no arguments")
	}
	ctx, cancel := t.limited(ctx)
	defer cancel()
	return t.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		all, err := t.loaders(ctx, rdb)
		if err != nil {
			return err
		}
		if err := t.show(all, func(row func(...any)) {
			row("LOADER", "SINCE")
			for _, l := range all {
				row(l.Name, l.since())
			}
		}); err != nil {
			return err
		}
		if len(all) == 0 {
			return errAbsent
		}
		return nil
	})
}

// loaders returns the loaders that have a generation in Redis, sorted by name. A process reads
// and writes no entry of a loader before the loader has one.
func (t *tool) loaders(ctx context.Context, rdb redis.UniversalClient) ([]shownLoader, error) {
	fields, err := rdb.HGetAll(ctx, t.registry()).Result()
	if err != nil {
		return nil, err
	}
	all := []shownLoader{}
	for name, generation := range fields {
		if name == "" { // the number of the last announcement
			continue
		}
		l := shownLoader{Name: untrusted(name)}
		if micros, err := strconv.ParseInt(generation, 10, 64); err == nil {
			l.at = time.UnixMicro(micros)
			l.Since = stamp(l.at)
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b shownLoader) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return all, nil
}

// registry returns the name of the hash in Redis with the generations of the loaders. On a cluster
// each range has such a hash with all loaders.
func (t *tool) registry() string { return invalidation.Numbers(t.prefix, 0) }

// maxListed is the maximum number of loaders that a warning lists.
const maxListed = 20

// warnUnknown warns if Redis does not know a loader. Its name, the prefix, or the server may be
// wrong.
func (t *tool) warnUnknown(ctx context.Context, rdb redis.UniversalClient, loader string) {
	ctx, cancel := t.limited(ctx)
	defer cancel()
	all, err := t.loaders(ctx, rdb)
	if err != nil {
		t.warn(fmt.Sprintf("whether Redis knows the loader %s is not known: reading %s: %v", loader, t.registry(), err))
		return
	}
	var names []string
	for _, l := range all {
		if string(l.Name) == loader {
			return
		}
		names = append(names, l.Name.String())
	}
	known := "no loader at all"
	if len(names) > 0 {
		known = strings.Join(names[:min(len(names), maxListed)], ", ")
	}
	if more := len(names) - maxListed; more > 0 {
		known += fmt.Sprintf(" and %d more", more)
	}
	t.warn(fmt.Sprintf("Redis does not know a loader %s under the prefix %s (field %s of the hash %s): no process has read through it. Are LOADER, --prefix and the Redis database right? Redis knows: %s",
		loader, t.prefix, loader, t.registry(), known))
}

func (t *tool) warn(text string) { fmt.Fprintln(t.stderr, "cacheaside: warning: "+escape(text)) }
