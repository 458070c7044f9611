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
	maxReturned = 1000 // keys that a loader remembers for its filter
	returnedFor = time.Hour
)

// holds reports for each of keys whether a filter may hold it.
type holds = func(ctx context.Context, keys []string) ([]bool, error)

// rebuiltFilter is a Filter whose answers may be replaced all at once.
type checkedFilter interface {
	CheckRebuilt(check func(ctx context.Context, listed []string, before time.Time, holds holds) (hidden int, err error)) (remove func())
}

// joinFilter has the filter ask for rows before it answers by a new build.
func (c *Core) joinFilterCheck() {
	c.filterCheck.stop = func() {}
	if f, ok := c.options.Filter.(checkedFilter); ok {
		c.filterCheck.recent = &recentKeys{byText: make(map[string]recentKey)}
		c.filterCheck.stop = f.CheckRebuilt(c.checkRebuilt)
	}
}

// checkRebuilt returns how many rows a filter would hide that loads have returned within the last
// hour, and before a time, unless that is zero. It loads the rows that the filter lacks, because
// rows that were deleted do not count, and stops at the first that exist. listed are some keys of
// the filter's source: keys that may be other spellings of these do not count.
func (c *Core) checkRebuilt(ctx context.Context, listed []string, before time.Time, holds holds) (hidden int, err error) {
	missing, of, err := c.missing(ctx, before, holds)
	if err != nil {
		return 0, fmt.Errorf("loader %s: %w", c.options.Fetch.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(fault.Closed) })()
	missing = c.withoutSpellings(ctx, missing, of, listed)
	for part := range slices.Chunk(missing, c.chunk()) {
		var there []*fetch.Round
		for i, row := range c.LoadAlone(ctx, part, source.Call{Background: true}) {
			switch {
			case c.life.Err() != nil:
				return 0, nil // nobody reads by this loader any more
			case row.Err != nil:
				return 0, fmt.Errorf("loader %s: loading a row that the filter lacks: %w", c.options.Fetch.Name, row.Err)
			case !row.Null:
				there = append(there, part[i])
			}
		}
		if len(there) > 0 {
			return len(there), fmt.Errorf("loader %s: #%016x is there, and the filter lacks it; of %d rows that loads have returned it lacks %d", c.options.Fetch.Name, c.names.Hash(there[0].Text()), of, len(missing))
		}
	}
	return 0, nil
}

// missing returns rounds of the keys of returned rows that the filter lacks, and of how many.
func (c *Core) missing(ctx context.Context, before time.Time, holds holds) (missing []*fetch.Round, of int, err error) {
	var rounds []*fetch.Round
	for _, of := range c.filterCheck.recent.between(time.Now().Add(-returnedFor), before) {
		rounds = append(rounds, &c.roundOf(of.key, of.text).Result)
	}
	if len(rounds) == 0 {
		return nil, 0, nil
	}
	has, err := holds(ctx, fetch.Texts(rounds))
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

// A database may find one row under several keys: it compares text with a number ("2x" finds 2), or
// by a collation ("ADA" finds "ada"). A filter lacks all of them except the one that its source
// lists. Anyone can ask for such keys, so they must not speak against the source. No outsider
// chooses the keys that a source lists: if these have rows, it is the right one.

// withoutSpellings returns those of missing, the keys that a filter lacks of so many, that can only
// be rows which its source leaves out.
func (c *Core) withoutSpellings(ctx context.Context, missing []*fetch.Round, of int, listed []string) []*fetch.Round {
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
	if len(rows) == len(missing) || !c.listsLoaderKeys(ctx, listed, of, len(missing)) {
		return missing
	}
	c.cache.Warn("the database finds rows for keys that the filter's source does not list: it may compare text with numbers, or by a collation; make such keys one before the read, or check the source", c.options.Fetch.Name, nil)
	return rows
}

// isNumber reports whether text is an integer as the database writes it.
func isNumber(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// lists reports whether a source lists keys of this loader's rows: at least a quarter of those
// listed have one. (Not more, because loaders of other keys may share the filter.) If no key can be
// made of their text, it goes by the rows that loads have returned, of which the filter must have
// at least half.
func (c *Core) listsLoaderKeys(ctx context.Context, listed []string, of, missing int) bool {
	var rounds []*fetch.Round
	for _, text := range listed {
		if key, ok := c.typed.keyOfText(text); ok {
			rounds = append(rounds, &c.roundOf(key, text).Result)
		}
	}
	if len(rounds) > 0 {
		return 4*c.existing(ctx, rounds) >= len(listed)
	}
	return 2*missing <= of
}

// existing returns how many rounds have a row.
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
