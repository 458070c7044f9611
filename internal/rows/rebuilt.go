package rows

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

const (
	maxReturned = 1000 // maximum number of keys that a loader records for its filter
	returnedFor = time.Hour
)

// mayContain reports for each key whether a filter may contain it.
type mayContain = func(ctx context.Context, keys []string) ([]bool, error)

// FilterRebuilt is cacheaside.FilterRebuilt.
type FilterRebuilt interface {
	CheckRebuilt(check func(ctx context.Context, listed []string, before time.Time, contains mayContain) (hidden int, err error)) (remove func())
}

// joinFilterCheck registers checkRebuilt with the loader's filter, if the filter is a
// FilterRebuilt.
func (c *Core) joinFilterCheck() {
	c.filterCheck.stop = func() {}
	if f, ok := c.options.Filter.(FilterRebuilt); ok {
		c.filterCheck.recent = &recentKeys{byText: make(map[string]recentKey)}
		c.filterCheck.stop = f.CheckRebuilt(c.checkRebuilt)
	}
}

// checkRebuilt checks a rebuilt filter. It returns a number greater than zero if the filter would
// refuse the keys of existing rows. It takes up to maxReturned keys whose rows were loaded within
// the last hour. If before is not zero, it takes only keys whose rows were loaded earlier than
// that. It loads the rows of the keys that the filter lacks again, because rows that were deleted
// since do not count. It stops at the first call of the load function that returns rows. listed are
// some keys of the filter's source. Keys that may be other spellings of keys in the source do not
// count.
func (c *Core) checkRebuilt(ctx context.Context, listed []string, before time.Time, contains mayContain) (hidden int, err error) {
	missing, recorded, err := c.missing(ctx, before, contains)
	if err != nil {
		return 0, fmt.Errorf("loader %s: %w", c.options.Fetch.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(fault.Closed) })()
	missing = c.withoutSpellings(ctx, missing, recorded, listed)
	for part := range slices.Chunk(missing, c.chunk()) {
		var there []*fetch.Round
		for i, row := range c.LoadAlone(ctx, part, source.Call{Background: true}) {
			switch {
			case c.life.Err() != nil:
				return 0, nil // the loader is closed
			case row.Err != nil:
				return 0, fmt.Errorf("loader %s: loading a row that the filter lacks: %w", c.options.Fetch.Name, row.Err)
			case !row.Null:
				there = append(there, part[i])
			}
		}
		if len(there) > 0 {
			return len(there), fmt.Errorf("loader %s: the row of key %016x exists, and the filter lacks it; it lacks %d of %d rows that loads have returned", c.options.Fetch.Name, c.names.Hash(there[0].Text()), len(missing), recorded)
		}
	}
	return 0, nil
}

// missing returns rounds of recorded keys that the filter lacks, and the number of recorded keys.
func (c *Core) missing(ctx context.Context, before time.Time, contains mayContain) (missing []*fetch.Round, recorded int, err error) {
	var rounds []*fetch.Round
	for _, k := range c.filterCheck.recent.between(time.Now().Add(-returnedFor), before) {
		rounds = append(rounds, &c.roundOf(k.key, k.text).Result)
	}
	if len(rounds) == 0 {
		return nil, 0, nil
	}
	has, err := contains(ctx, fetch.Texts(rounds))
	if err == nil && len(has) != len(rounds) {
		err = fetch.ErrFilterLength
	}
	if err != nil {
		return nil, 0, err
	}
	for i, r := range rounds {
		if !has[i] {
			missing = append(missing, r)
		}
	}
	return missing, len(rounds), nil
}

// A database may find one row under several keys, because it compares text with a number ("2x"
// finds 2), or by a collation ("ADA" finds "ada"). A filter contains only the key that its source
// lists. Anyone can request such keys, so they must not count against the source. The keys that a
// source lists are not chosen by outsiders: if these keys have rows, the source is the right one.

// withoutSpellings returns those keys of missing that cannot be other spellings of keys that the
// source lists. recorded is the number of keys that were checked.
func (c *Core) withoutSpellings(ctx context.Context, missing []*fetch.Round, recorded int, listed []string) []*fetch.Round {
	if len(missing) == 0 || !c.spellings { // keys without text have one spelling
		return missing
	}
	numbers := len(listed) > 0
	for _, text := range listed {
		numbers = numbers && isNumber(text)
	}
	var rows []*fetch.Round
	for _, r := range missing {
		if numbers && isNumber(r.Text()) {
			rows = append(rows, r)
		}
	}
	if len(rows) == len(missing) || !c.listsLoaderKeys(ctx, listed, recorded, len(missing)) {
		return missing
	}
	c.cache.Warn("the database finds rows for keys that the filter's source does not list: it may compare text with numbers, or by a collation; normalize such keys before the read, or check the source", c.options.Fetch.Name, nil)
	return rows
}

// isNumber reports whether text is an integer as the database writes it.
func isNumber(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// listsLoaderKeys reports whether a source lists keys of this loader's rows. At least a quarter
// of listed must have a row. (Not more, because loaders of other keys may share the filter.) If
// nothing is listed, or the loader cannot convert texts to keys, the filter must contain at least
// half of the recorded keys.
func (c *Core) listsLoaderKeys(ctx context.Context, listed []string, recorded, missing int) bool {
	if len(listed) == 0 || !c.typed.hasKeyOfText() {
		return 2*missing <= recorded
	}
	var rounds []*fetch.Round
	for _, text := range listed {
		if key, ok := c.typed.keyOfText(text); ok {
			rounds = append(rounds, &c.roundOf(key, text).Result)
		}
	}
	return 4*c.existing(ctx, rounds) >= len(listed)
}

// existing returns the number of rounds that have a row.
func (c *Core) existing(ctx context.Context, rounds []*fetch.Round) (n int) {
	for part := range slices.Chunk(rounds, c.chunk()) {
		for _, row := range c.LoadAlone(ctx, part, source.Call{Background: true}) {
			if row.Err == nil && !row.Null {
				n++
			}
		}
	}
	return n
}
