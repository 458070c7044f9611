package main

import (
	"context"
	"errors"
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
data. Redis also keeps the names of loaders that no process has any more. It lists at most
1,000. It changes nothing.
Exit code 3: Redis knows no loader under the prefix.`,
	example: "loader ls --json",
	prepare: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error { return t.listLoaders },
}

// shownLoader is a loader in the output.
type shownLoader struct {
	Name  untrusted `json:"name"`
	Since *string   `json:"since"` // the time of its generation; nil: unreadable

	time time.Time
}

func (s *shownLoader) since() string {
	if s.Since == nil {
		return "unreadable"
	}
	return moment(s.time, time.Now())
}

func (t *tool) listLoaders(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("loader ls: it has no arguments")
	}
	ctx, cancel := t.limited(ctx)
	defer cancel()
	return t.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		all, more, err := t.loaders(ctx, rdb)
		if err != nil {
			return err
		}
		if more {
			t.warn(fmt.Sprintf("Redis knows more than %d loaders under the prefix %s: the list is not complete",
				maxLoaders, t.prefix))
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

const (
	maxLoaders = 1000 // maximum number of loaders that are read
	scanCount  = 100  // number of fields that Redis is asked for at a time
)

// loaders returns loaders that have a generation in Redis, sorted by name. It returns at most
// maxLoaders, and reports whether there are more. A process reads and writes no entry of a loader
// before the loader has a generation.
func (t *tool) loaders(ctx context.Context, rdb redis.UniversalClient) (all []shownLoader, more bool, err error) {
	fields := make(map[string]string) // HSCAN may return a field twice
	for cursor := uint64(0); ; {
		var some []string
		if some, cursor, err = rdb.HScan(ctx, t.registry(), cursor, "", scanCount).Result(); err != nil {
			return nil, false, err
		}
		for i := 0; i+1 < len(some); i += 2 {
			if some[i] != "" && some[i][0] != ':' && !strings.HasSuffix(some[i], ":groups") {
				// not the last number, what is pending, and the marks of loaders with groups
				fields[some[i]] = some[i+1]
			}
		}
		if cursor == 0 || len(fields) > maxLoaders {
			break
		}
	}
	all = []shownLoader{}
	for name, generation := range fields {
		l := shownLoader{Name: untrusted(name)}
		if micros, err := strconv.ParseInt(generation, 10, 64); err == nil {
			l.time = time.UnixMicro(micros)
			l.Since = stamp(l.time)
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b shownLoader) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return all[:min(len(all), maxLoaders)], len(all) > maxLoaders, nil
}

// registry returns the name of the hash in Redis with the generations of the loaders. On a cluster
// each range has such a hash with all loaders.
func (t *tool) registry() string { return invalidation.Numbers(t.prefix, 0) }

const (
	maxListed = 20  // maximum number of loaders that a warning lists
	maxName   = 255 // maximum number of bytes of a name in a warning
)

// warnUnknown warns if Redis does not know a loader, or if grouped is true, that the loader has
// groups. Its name, the prefix, or the server may be wrong.
func (t *tool) warnUnknown(ctx context.Context, rdb redis.UniversalClient, loader string, grouped bool) {
	ctx, cancel := t.limited(ctx)
	defer cancel()
	field := loader
	err := rdb.HGet(ctx, t.registry(), field).Err()
	if err == nil && grouped {
		field += ":groups"
		err = rdb.HGet(ctx, t.registry(), field).Err()
	}
	switch {
	case err == nil:
	case !errors.Is(err, redis.Nil):
		t.warn(fmt.Sprintf("whether Redis knows the loader %s is not known: reading %s: %v", loader, t.registry(), err))
	case field != loader:
		t.warn(fmt.Sprintf("the loader %s has no groups under the prefix %s (field %s of the hash %s): no process "+
			"has read through it with LoaderOptions.Groups. Are LOADER, --prefix and the Redis database right?",
			loader, t.prefix, field, t.registry()))
	default:
		t.warn(fmt.Sprintf("Redis does not know a loader %s under the prefix %s (field %s of the hash %s): no "+
			"process has read through it. Are LOADER, --prefix and the Redis database right? Redis knows: %s",
			loader, t.prefix, field, t.registry(), t.known(ctx, rdb)))
	}
}

// known returns the names of some loaders that have a generation in Redis, for a warning.
func (t *tool) known(ctx context.Context, rdb redis.UniversalClient) string {
	all, more, err := t.loaders(ctx, rdb)
	switch {
	case err != nil:
		return fmt.Sprintf("reading its loaders failed: %v", err)
	case len(all) == 0:
		return "no loader at all"
	}
	var names []string
	for _, l := range all[:min(len(all), maxListed)] {
		if len(l.Name) > maxName {
			l.Name = l.Name[:maxName] + "…"
		}
		names = append(names, l.Name.String())
	}
	known := strings.Join(names, ", ")
	switch others := len(all) - len(names); {
	case more:
		known += fmt.Sprintf(" and more than %d more", others)
	case others > 0:
		known += fmt.Sprintf(" and %d more", others)
	}
	return known
}

func (t *tool) warn(text string) { fmt.Fprintln(t.stderr, "cacheaside: warning: "+escape(text)) }
