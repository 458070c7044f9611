package bloom

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A new filter is looked at before it takes the place of another: the source may have been an empty
// table, another one, or one that was read in part, or have yielded the keys in another form. All
// its rows would be hidden.

// refusal tells whether a filter has not taken its place for what it holds.
func refusal(err error) bool { return errors.Is(err, ErrFewer) || errors.Is(err, ErrHides) }

// fewest is the share of the keys that a new filter must have, at least.
const fewest = 0.9

// estimated is about how many keys a filter holds, and how far off that may be: three standard
// deviations.
type estimated struct{ keys, spread float64 }

// estimated tells of so many bits that are set. Those of n keys that are not set have the variance
// of the empty bins of kn balls.
func (s shape) estimated(set uint64) estimated {
	m := float64(s.total())
	empty := max(1, m-float64(min(set, s.total()))) // where all are set there may be any number of keys
	c := math.Log(m / empty)                        // balls for each bin
	deviation := math.Sqrt(max(0, empty*(1-(1+c)*empty/m)))
	perKey := m / float64(s.k)
	return estimated{keys: c * perKey, spread: 3 * deviation / empty * perKey}
}

// enough returns ErrFewer where a new filter of that shape, with so many bits set, holds too few
// keys, compared with those of the present one, if there is one, less the rows that were deleted.
// One whose bits are all set hides nothing.
func enough(present *estimated, deleted uint64, s shape, set uint64) error {
	switch {
	case present == nil && set == 0:
		return fmt.Errorf("%w: no keys; if the table is still empty, see RebuildOptions.AllowFewer", ErrFewer)
	case present == nil, set >= s.total():
		return nil
	}
	next := s.estimated(set)
	want := fewest * (present.keys - float64(deleted))
	if unsure := math.Hypot(fewest*present.spread, next.spread); next.keys+unsure >= want {
		return nil
	}
	return fmt.Errorf("%w: about %.0f; the present one holds about %.0f, %d of them reported as deleted; if the new number is right, see RebuildOptions.AllowFewer",
		ErrFewer, next.keys, present.keys, deleted)
}

// Holds tells of each of keys whether a filter that was built, and does not serve yet, may hold it.
type Holds = func(ctx context.Context, keys []string) ([]bool, error)

// checkers are what those who read rows have to say of a filter that was built.
type checkers struct {
	mu  sync.Mutex
	all []*Check
}

// A Check returns how many existing rows a filter would hide, with an error that says more. An
// error with 0 is one of the check itself. listed are some keys that the filter's source has
// yielded; none, if they are not known. A row that was read at or after before does not count; a
// zero before excludes none.
type Check = func(ctx context.Context, listed []string, before time.Time, holds Holds) (hidden int, err error)

// CheckRebuilt makes Rebuild call check with each filter that it builds in this process, before the
// filter takes its place. If check returns more than 0, the Rebuild fails with ErrHides; if check
// itself fails, it is tried again. Hidden calls check with the filter that serves. A
// cacheaside.Loader calls CheckRebuilt by itself, for the rows that its loads return. remove ends
// these calls, and may be called again.
func (f *Redis) CheckRebuilt(check Check) (remove func()) {
	return f.checkers.add(check)
}

// CheckRebuilt makes Rebuild and Load call check with each filter that they build or read, before
// the filter takes its place: see Redis.CheckRebuilt.
func (l *Local) CheckRebuilt(check Check) (remove func()) {
	return l.checkers.add(check)
}

func (c *checkers) add(check Check) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &check
	c.all = append(c.all, at)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = slices.DeleteFunc(c.all, func(other *Check) bool { return other == at })
	}
}

// accept fails with ErrHides if a check finds rows that a new filter would hide.
func (c *checkers) accept(ctx context.Context, listed []string, holds Holds) error {
	hides, err := c.run(ctx, listed, time.Time{}, holds)
	switch {
	case hides != nil:
		return fmt.Errorf("%w: %w", ErrHides, hides)
	case err != nil:
		return fmt.Errorf("the new filter could not be checked: %w", err)
	}
	return nil
}

// run calls the checks until one finds rows that the filter hides, or fails. hides says which rows.
func (c *checkers) run(ctx context.Context, listed []string, before time.Time, holds Holds) (hides, err error) {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	for _, check := range all {
		hidden, err := (*check)(ctx, listed, before, holds)
		if hidden > 0 {
			return fmt.Errorf("%d at least: %w", hidden, err), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
