package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// A new filter is looked at before it takes the place of another: the source may have been an empty
// table, another one, or one that was read in part, or have yielded the keys in another form. All
// its rows would be hidden.

// refusal tells whether a filter has not taken its place for what it holds.
func isRefusal(err error) bool { return errors.Is(err, ErrFewer) || errors.Is(err, ErrHides) }

const (
	minKeyShare   = 0.9  // the share of the keys that a new filter must have
	maxFill       = 0.99 // the share of set bits above which the number of keys is not known
	estimateSlack = 3    // keys that an estimate may be off in a small filter
)

// enough returns ErrFewer if a new filter of this shape, with so many bits set, holds too few keys,
// compared with those of the present filter, if there is one, less the rows that were deleted. The
// numbers of keys are estimates, and a few keys make no difference. A filter that has nearly all of
// its bits set hides nothing, and cannot be compared with.
func checkKeyCount(present State, s shape, set uint64) error {
	if !present.Built && set == 0 {
		return fmt.Errorf("%w: no keys; if the table is still empty, see RebuildOptions.AllowFewer", ErrFewer)
	}
	if !present.Built || present.Fill() > maxFill || float64(set) > maxFill*float64(s.total()) {
		return nil
	}
	keys := s.estimate(set)
	want := minKeyShare*(float64(present.Keys)-float64(present.Deleted)) - estimateSlack
	if float64(keys) >= want {
		return nil
	}
	return fmt.Errorf("%w: about %d; the present one holds about %d, %d of them reported as deleted; if the new number is right, see RebuildOptions.AllowFewer",
		ErrFewer, keys, present.Keys, present.Deleted)
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
func (c *checkers) accept(ctx context.Context, sampledKeys []string, holds Holds) error {
	hides, err := c.run(ctx, sampledKeys, time.Time{}, holds)
	switch {
	case hides != nil:
		return fmt.Errorf("%w: %w", ErrHides, hides)
	case err != nil:
		return fmt.Errorf("the new filter could not be checked: %w", err)
	}
	return nil
}

// run calls the checks until one finds rows that the filter hides, or fails. hides says which rows.
func (c *checkers) run(ctx context.Context, sampledKeys []string, before time.Time, holds Holds) (hides, err error) {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	for _, check := range all {
		hidden, err := (*check)(ctx, sampledKeys, before, holds)
		if hidden > 0 {
			return fmt.Errorf("%d at least: %w", hidden, err), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

const (
	sampleSize    = 16  // keys of a sample
	maxSampledKey = 256 // bytes of each of them, at most
)

// sample is a few of many keys, chosen at random.
type sample struct {
	keys []string
	seen int
}

func (s *sample) add(key string) {
	if len(key) > maxSampledKey {
		return
	}
	s.seen++
	if len(s.keys) < sampleSize {
		s.keys = append(s.keys, strings.Clone(key))
	} else if i := rand.IntN(s.seen); i < sampleSize {
		s.keys[i] = strings.Clone(key)
	}
}

// hiding records that a filter was dropped because it had refused a key whose row exists.
//
// An outsider can cause such a report: a database that compares text with a number, or by a
// collation, finds the row of another key ("2x" finds the row 2). No source lists that key, so no
// rebuild brings it. A report therefore drops the filter only once. When the filter was rebuilt and
// lacks a reported key again, the source is judged by what outsiders cannot choose (see
// CheckRebuilt), and only a wrong source drops the filter again, for longer each time.
type falseNegative struct {
	ID         string    `json:"id"`    // of the drop
	Key        hash      `json:"key"`   // of the reported key
	ReportedAt time.Time `json:"at"`    // of the last report, by the clock of the process that reported
	Drops      int       `json:"times"` // drops in a row
}

const (
	firstDelay = time.Minute // between the second drop in a row and the rebuild
	maxDelay   = 24 * time.Hour

	// renewAfter is the age of a hiding from which a further report renews it.
	renewAfter = time.Hour
)

// recent reports whether the filter was dropped a short time ago, so that a further report does not
// drop it.
func (f *falseNegative) recent(now time.Time) bool {
	return f != nil && now.Sub(f.ReportedAt) < maxDelay
}

// again returns the hiding of the next drop, for a key.
func (f *falseNegative) next(now time.Time, key hash) *falseNegative {
	next := &falseNegative{ID: newID(), Key: key, ReportedAt: now, Drops: 1}
	if f.recent(now) {
		next.Drops = min(f.Drops, 30) + 1
	}
	return next
}

// renewed returns the hiding with the time of a report that has not dropped the filter.
func (f *falseNegative) renewed(now time.Time) *falseNegative {
	next := *f
	next.ReportedAt = now
	return &next
}

// rests reports whether Maintain must not rebuild the filter yet.
func (f *falseNegative) delaysRebuild(now time.Time) bool {
	if f == nil || f.Drops < 2 {
		return false
	}
	since := now.Sub(f.ReportedAt)
	return since >= 0 && since < min(firstDelay<<min(f.Drops, 11), maxDelay)
}

// id returns the id of the drop, or "" if there was none.
func (f *falseNegative) id() string {
	if f == nil {
		return ""
	}
	return f.ID
}

// errHiddenSince refuses a rebuild that began before the filter was dropped.
var errLacksReported = fmt.Errorf("%w: it lacks a key whose row was found while it was built", ErrHides)

const (
	// judgeEvery is how often a process judges the source of a generation that serves.
	sourceCheckInterval = time.Minute

	// lagging is how long the key of an inserted row may take to reach the filter.
	insertLag = time.Minute
)

// judged limits how often a generation is judged.
type sourceCheck struct {
	mu         sync.Mutex
	generation string
	checkedAt  time.Time
}

// due reports whether the generation is to be judged now, and notes that it is.
func (s *sourceCheck) due(generation string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.generation == generation && now.Sub(s.checkedAt) < sourceCheckInterval {
		return false
	}
	s.generation, s.checkedAt = generation, now
	return true
}

// wrong returns why the source of a generation that serves must be wrong, according to the loaders
// of this process, or nil. Only rows count that were read before it was begun, or longer than
// lagging ago: the keys of others may still be on their way to the filter.
func (s *sourceCheck) run(ctx context.Context, generation string, begun time.Time, c *checkers, sampledKeys []string, holds Holds) (why, err error) {
	if !s.due(generation) {
		return nil, nil
	}
	before := time.Now().Add(-insertLag)
	if begun = begun.Add(-time.Second); begun.After(before) { // it may be of another process's clock
		before = begun
	}
	return c.run(ctx, sampledKeys, before, holds)
}

// refuse counts a filter that has not taken its place.
func (c *counts) countRefusal(err error) {
	if isRefusal(err) {
		c.refused.Add(1)
	}
}
