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

// A new filter is checked before it replaces another. The source may have read an empty table,
// another table, or only part of one, or may have formatted the keys differently. The filter
// would then refuse the keys of existing rows.

// isRejection reports whether err means that a rebuilt filter was rejected because of its content.
func isRejection(err error) bool { return errors.Is(err, ErrFewer) || errors.Is(err, ErrHides) }

const (
	minKeyShare   = 0.9  // minimum share of the present keys that a new filter must have
	maxFill       = 0.99 // share of set bits above which the number of keys cannot be estimated
	estimateSlack = 3    // an estimate of a small filter may be wrong by this number of keys
)

// checkKeyCount returns ErrFewer if a new filter with this shape and number of set bits has too few
// keys. It compares them with the keys of the present filter, if there is one, minus the deleted
// rows. The numbers of keys are estimates, so a difference of a few keys is ignored. If nearly all
// bits of either filter are set, no comparison is possible, and the new filter is accepted.
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

// Holds reports for each of keys whether a filter may contain it. The filter may have been built
// and not serve yet.
type Holds = func(ctx context.Context, keys []string) ([]bool, error)

// checkers contains the registered checks. See Redis.CheckRebuilt.
type checkers struct {
	mu  sync.Mutex
	all []*Check
}

// A Check returns the number of existing rows whose keys a filter would refuse, and an error that
// describes them. An error with 0 means that the check itself failed. sampledKeys are some keys
// that the filter's source has yielded, or none if they are not known. Rows that were read at or
// after before do not count; a zero before excludes none.
type Check = func(ctx context.Context, sampledKeys []string, before time.Time, holds Holds) (hidden int, err error)

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

// accept fails with ErrHides if a check finds rows whose keys a new filter would refuse.
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

// run calls the checks until one fails or finds rows whose keys the filter refuses. hides
// describes these rows.
func (c *checkers) run(ctx context.Context, sampledKeys []string, before time.Time, holds Holds) (hides, err error) {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	for _, check := range all {
		hidden, err := (*check)(ctx, sampledKeys, before, holds)
		if hidden > 0 {
			return fmt.Errorf("at least %d: %w", hidden, err), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

const (
	sampleSize    = 16  // maximum number of keys in a sample
	maxSampledKey = 256 // maximum length of a sampled key, in bytes
)

// sample is a small random sample of many keys.
type sample struct {
	keys []string
	seen int // number of keys that were short enough
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

// falseNegative records that a filter was dropped because it had refused a key whose row exists.
//
// An outsider can cause such a report. A database that compares text with a number, or by a
// collation, finds the row of another key ("2x" finds the row 2). No source yields that key, so
// no rebuild adds it. A report therefore drops the filter only once. If the rebuilt filter lacks
// a reported key again, the source is checked with rows that outsiders cannot choose (see
// CheckRebuilt). Only a wrong source drops the filter again, for longer each time.
type falseNegative struct {
	ID         string    `json:"id"`    // unique to the drop
	Key        hash      `json:"key"`   // reported key
	ReportedAt time.Time `json:"at"`    // time of the last report, by the clock of the process that reported it
	Drops      int       `json:"times"` // number of consecutive drops
}

const (
	// The delay of a rebuild after n consecutive drops is firstDelay << n, from the second drop
	// on, and at most maxDelay.
	firstDelay = time.Minute
	maxDelay   = 24 * time.Hour

	// renewAfter is the age from which a further report updates ReportedAt.
	renewAfter = time.Hour
)

// recent reports whether the last report was so recent that another one does not drop the filter.
func (f *falseNegative) recent(now time.Time) bool {
	return f != nil && now.Sub(f.ReportedAt) < maxDelay
}

// next returns the falseNegative of the next drop, caused by key.
func (f *falseNegative) next(now time.Time, key hash) *falseNegative {
	next := &falseNegative{ID: newID(), Key: key, ReportedAt: now, Drops: 1}
	if f.recent(now) {
		next.Drops = min(f.Drops, 30) + 1
	}
	return next
}

// renewed returns a copy with the time of a report that has not dropped the filter.
func (f *falseNegative) renewed(now time.Time) *falseNegative {
	next := *f
	next.ReportedAt = now
	return &next
}

// delaysRebuild reports whether Maintain must wait before it rebuilds the filter.
func (f *falseNegative) delaysRebuild(now time.Time) bool {
	if f == nil || f.Drops < 2 {
		return false
	}
	since := now.Sub(f.ReportedAt)
	return since >= 0 && since < min(firstDelay<<min(f.Drops, 11), maxDelay)
}

// id returns the ID of the drop, or "" if there was none.
func (f *falseNegative) id() string {
	if f == nil {
		return ""
	}
	return f.ID
}

// errLacksReported is the error of a rebuild that began before the filter was dropped.
var errLacksReported = fmt.Errorf("%w: it lacks a key whose row was found while it was built", ErrHides)

const (
	// sourceCheckInterval is the minimum time between two checks of a source by one process.
	sourceCheckInterval = time.Minute

	// failedCheckPause is the pause after a check that failed. A check loads many rows, and the
	// database may be overloaded.
	failedCheckPause = 10 * time.Second

	// insertLag is the maximum time that the key of an inserted row may take to reach the filter.
	insertLag = time.Minute
)

// errCheckFailed is the error of a report during failedCheckPause.
var errCheckFailed = errors.New("the source could not be checked a moment ago; it is checked again after a pause")

// sourceCheck checks the source of the active generation, and limits how often it does so.
type sourceCheck struct {
	mu         sync.Mutex
	generation string
	nextAt     time.Time // when the next check of the generation is due
	failed     bool      // the last check of the generation has failed
}

// begin reports whether the source of the generation is to be checked now, and records the check.
// It returns an error if the last check has failed and the next one is not due.
func (s *sourceCheck) begin(generation string) (due bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.generation != generation || !now.Before(s.nextAt):
		s.generation, s.nextAt, s.failed = generation, now.Add(sourceCheckInterval), false
		return true, nil
	case s.failed:
		return false, errCheckFailed
	}
	return false, nil
}

// repeat makes the next check of the generation due after pause. Until then, reports fail.
func (s *sourceCheck) repeat(generation string, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation == generation {
		s.nextAt, s.failed = time.Now().Add(pause), true
	}
}

// run returns why the source of the active generation must be wrong, according to the loaders of
// this process, or nil. Only rows that were read before the generation was begun, or more than
// insertLag ago, count. The keys of other rows may not have reached the filter yet.
//
// It returns nil without a check only while a recent check is in progress, or has found that the
// source is right. After any other check a retry must not conclude that the source is right. After
// a check that failed, run returns an error until failedCheckPause has passed. If the source is
// wrong, the next report checks it again, because the caller may be unable to drop the filter.
func (s *sourceCheck) run(ctx context.Context, generation string, begun time.Time, c *checkers, sampledKeys []string, holds Holds) (why, err error) {
	if due, err := s.begin(generation); !due {
		return nil, err
	}
	panicked := true
	defer func() {
		switch {
		case panicked || why != nil:
			s.repeat(generation, 0)
		case err != nil:
			s.repeat(generation, failedCheckPause)
		}
	}()
	before := time.Now().Add(-insertLag)
	if begun = begun.Add(-time.Second); begun.After(before) { // begun is by the clock of another process, which may differ
		before = begun
	}
	why, err = c.run(ctx, sampledKeys, before, holds)
	panicked = false
	return why, err
}

// countRejection counts a filter that was not put in place.
func (c *counts) countRejection(err error) {
	if isRejection(err) {
		c.rejected.Add(1)
	}
}
