package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/keys"
)

var filterInfoCommand = command{
	name: "filter info", args: "NAME",
	short: "show the state of a Bloom filter in Redis",
	long: `Shows a filter of bloom.NewRedis: the number of keys and the rate of false positives that
it was made for, the number of keys that it holds, whether a rebuild is under way, and
whether all its parts are there. It changes nothing.
Exit code 3: there is no filter, or it is not built.`,
	example: "filter info user",
	prepare: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if err := filterName("info", args, len(args) == 1); err != nil {
				return err
			}
			ctx, cancel := t.limited(ctx)
			defer cancel()
			return t.onFilter(ctx, args[0], 1, 0.01, t.filterInfo)
		}
	},
}

var filterCheckCommand = command{
	name: "filter check", args: "NAME KEY...",
	short: "ask a Bloom filter in Redis for keys",
	long: `Asks a filter for keys. It answers "maybe", "certainly not", or "maybe: it cannot say" if
the filter is not built or a part of it is lost. It changes nothing.
Exit code 3: the filter holds one of the keys certainly not.`,
	example: "filter check user 42 43",
	prepare: func(t *tool, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if err := filterName("check", args, len(args) >= 2); err != nil {
				return err
			}
			ctx, cancel := t.limited(ctx)
			defer cancel()
			return t.onFilter(ctx, args[0], 1, 0.01,
				func(ctx context.Context, f *bloom.Redis) error { return t.filterCheck(ctx, f, args[1:]) })
		}
	},
}

func filterName(command string, args []string, enough bool) error {
	switch {
	case !enough && command == "check":
		return usagef("filter check: NAME and at least one KEY")
	case !enough:
		return usagef("filter %s: one NAME, not %d arguments", command, len(args))
	case !keys.ValidName(args[0]):
		return usagef("filter %s: NAME: letters, digits, '_', '.' and '-'", command)
	}
	return nil
}

// onFilter calls f with a filter, and closes the filter afterwards. Capacity and rate are used
// only by a rebuild.
func (t *tool) onFilter(
	ctx context.Context, name string, capacity uint64, rate float64, f func(context.Context, *bloom.Redis) error,
) error {
	return t.onRedis(ctx, func(ctx context.Context, rdb redis.UniversalClient) error {
		filter, err := bloom.NewRedis(rdb, name, capacity, rate, &bloom.Options{Prefix: t.prefix, Timeout: t.timeout})
		if err != nil {
			return err
		}
		defer filter.Close() //nolint:errcheck // always nil
		return f(ctx, filter)
	})
}

// shownFilter is the output of the command filter info.
type shownFilter struct {
	Built        bool    `json:"built"`
	Rebuilding   bool    `json:"rebuilding"`
	Generation   string  `json:"generation,omitempty"`
	Owner        string  `json:"owner,omitempty"`
	Table        string  `json:"table,omitempty"`
	Begun        *string `json:"begun,omitempty"`
	Capacity     uint64  `json:"capacity"`
	Rate         float64 `json:"rate"`
	Keys         uint64  `json:"keys"`
	Bits         uint64  `json:"bits"`
	Fill         float64 `json:"fill"`
	Hashes       uint64  `json:"hashes"`
	Segments     uint64  `json:"segments"`
	LostSegments uint64  `json:"lost_segments"`
	Deleted      uint64  `json:"deleted"`
	Next         string  `json:"next,omitempty"`
	NextBegun    *string `json:"next_begun,omitempty"`
	Old          int     `json:"old_generations"`
	Unreadable   bool    `json:"unreadable"`
}

func (t *tool) filterInfo(ctx context.Context, f *bloom.Redis) error {
	s, err := f.State(ctx)
	if err != nil {
		return err
	}
	v := shownFilter{
		Built: s.Built, Rebuilding: s.Building, Generation: s.Generation, Owner: s.Owner, Table: s.Table,
		Begun: stamp(s.Begun), Capacity: s.Capacity, Rate: s.Rate, Keys: s.Keys, Bits: s.Bits, Fill: s.Fill(),
		Hashes: s.Hashes, Segments: s.Segments, LostSegments: s.LostSegments, Deleted: s.Deleted, Next: s.Next,
		NextBegun: stamp(s.NextBegun), Old: s.Old, Unreadable: f.Stats().Malformed > 0,
	}
	err = t.show(v, func(row func(...any)) { v.rows(row, s) })
	if err == nil && !s.Built {
		err = errAbsent
	}
	return err
}

func (s shownFilter) rows(row func(...any), state bloom.State) {
	now := time.Now()
	switch {
	case s.Unreadable:
		row("built", "no", "its descriptor in Redis cannot be read; all results are \"maybe\"")
	case !s.Built:
		row("built", "no", "all results are \"maybe\"")
	default:
		row("built", "yes", moment(state.Begun, now))
		row("generation", s.Generation)
		if s.Owner != "" {
			row("belongs to", "the caches with the prefix "+string(untrusted(s.Owner)))
		}
		if s.Table != "" {
			row("read from", untrusted(s.Table))
		}
		row("made for", fmt.Sprintf("%d keys", s.Capacity), fmt.Sprintf("at %g false positives", s.Rate))
		row("holds about", fmt.Sprintf("%d keys", s.Keys), fmt.Sprintf("%.1f %% of its bits are set", 100*s.Fill))
		row("bits", s.Bits, fmt.Sprintf("%d of each key", s.Hashes))
		parts := "all there"
		if s.LostSegments > 0 {
			parts = fmt.Sprintf("%d LOST: their keys get \"maybe\" until a rebuild", s.LostSegments)
		}
		row("parts", s.Segments, parts)
		row("deleted rows", s.Deleted, "reported since; their keys stay until a rebuild")
	}
	if s.Rebuilding {
		row("rebuild", "in progress, or interrupted", "begun "+moment(state.NextBegun, now))
	} else {
		row("rebuild", "none in progress")
	}
	if s.Old > 0 {
		row("old", s.Old, "generations to be removed")
	}
}

// checked is the result of a filter for a key.
type checked struct {
	Key    untrusted `json:"key"`
	Answer string    `json:"answer"`
}

func (t *tool) filterCheck(ctx context.Context, f *bloom.Redis, texts []string) error {
	answers := make([]checked, len(texts))
	absent := false
	for i, text := range texts {
		before := f.Stats().Unknown
		maybe, err := f.MightContain(ctx, text)
		if err != nil {
			return err
		}
		answers[i] = checked{Key: untrusted(text), Answer: "maybe"}
		switch {
		case !maybe:
			absent = true
			answers[i].Answer = "certainly not"
		case f.Stats().Unknown > before:
			answers[i].Answer = "maybe: it cannot say"
		}
	}
	err := t.show(answers, func(row func(...any)) {
		for _, a := range answers {
			row(a.Key, a.Answer)
		}
	})
	if err == nil && absent {
		err = errAbsent
	}
	return err
}
