package bloom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// hiding records that a filter was dropped because it had refused a key whose row exists.
//
// An outsider can cause such a report: a database that compares text with a number, or by a
// collation, finds the row of another key ("2x" finds the row 2). No source lists that key, so no
// rebuild brings it. A report therefore drops the filter only once. When the filter was rebuilt and
// lacks a reported key again, the source is judged by what outsiders cannot choose (see
// CheckRebuilt), and only a wrong source drops the filter again, for longer each time.
type hiding struct {
	ID    string    `json:"id"`    // of the drop
	Key   hash      `json:"key"`   // of the reported key
	At    time.Time `json:"at"`    // of the last report, by the clock of the process that reported
	Times int       `json:"times"` // drops in a row
}

const (
	firstRest   = time.Minute // between the second drop in a row and the rebuild
	longestRest = 24 * time.Hour

	// renewAfter is the age of a hiding from which a further report renews it.
	renewAfter = time.Hour
)

// recent reports whether the filter was dropped a short time ago, so that a further report does not
// drop it.
func (h *hiding) recent(now time.Time) bool { return h != nil && now.Sub(h.At) < longestRest }

// again returns the hiding of the next drop, for a key.
func (h *hiding) again(now time.Time, key hash) *hiding {
	next := &hiding{ID: newID(), Key: key, At: now, Times: 1}
	if h.recent(now) {
		next.Times = min(h.Times, 30) + 1
	}
	return next
}

// renewed returns the hiding with the time of a report that has not dropped the filter.
func (h *hiding) renewed(now time.Time) *hiding {
	next := *h
	next.At = now
	return &next
}

// rests reports whether Maintain must not rebuild the filter yet.
func (h *hiding) rests(now time.Time) bool {
	if h == nil || h.Times < 2 {
		return false
	}
	since := now.Sub(h.At)
	return since >= 0 && since < min(firstRest<<min(h.Times, 11), longestRest)
}

// id returns the id of the drop, or "" if there was none.
func (h *hiding) id() string {
	if h == nil {
		return ""
	}
	return h.ID
}

// errHiddenSince refuses a rebuild that began before the filter was dropped.
var errHiddenSince = fmt.Errorf("%w: it lacks a key whose row was found while it was built", ErrHides)

const (
	// judgeEvery is how often a process judges the source of a generation that serves.
	judgeEvery = time.Minute

	// lagging is how long the key of an inserted row may take to reach the filter.
	lagging = time.Minute
)

// judged limits how often a generation is judged.
type judged struct {
	mu         sync.Mutex
	generation string
	at         time.Time
}

// due reports whether the generation is to be judged now, and notes that it is.
func (j *judged) due(generation string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if j.generation == generation && now.Sub(j.at) < judgeEvery {
		return false
	}
	j.generation, j.at = generation, now
	return true
}

// wrong returns why the source of a generation that serves must be wrong, according to the loaders
// of this process, or nil. Only rows count that were read before it was begun, or longer than
// lagging ago: the keys of others may still be on their way to the filter.
func (j *judged) wrong(ctx context.Context, generation string, begun time.Time, c *checkers, listed func() ([]string, error), holds Holds) (why, err error) {
	if !j.due(generation) {
		return nil, nil
	}
	keys, err := listed()
	if err == nil {
		before := time.Now().Add(-lagging)
		if begun = begun.Add(-time.Second); begun.After(before) { // it may be of another process's clock
			before = begun
		}
		why, err = c.run(ctx, keys, before, holds)
	}
	if err != nil { // it is due again
		j.mu.Lock()
		defer j.mu.Unlock()
		j.generation = ""
	}
	return why, err
}

// Hidden reports a key that the filter has refused although its row exists, as a cacheaside.Loader
// has found (LoaderOptions.AuditEvery). If the filter still refuses the key, it answers "maybe" for
// all keys from then on, in all processes, until it has been rebuilt. Maintain rebuilds it at its
// next check.
//
// A rebuilt filter may refuse the key again, because the source does not list it: a database that
// turns text into numbers, or compares by a collation, finds rows under other keys than their own.
// For 24 hours after the last report, such keys do not end the filter again, unless loaders of this
// process find that the source is wrong (see CheckRebuilt). Then the filter answers "maybe" again,
// and Maintain rebuilds it after a rest that doubles each time, up to a day.
//
// That concerns Replicas, too. If Hidden returns an error, try again.
func (f *Redis) Hidden(ctx context.Context, key string) error {
	d, err := f.fetch(ctx, f.allTries())
	if err != nil || d.Active == nil {
		f.recheckCopy() // it may still refuse keys
		return f.failed(err)
	}
	h := hashOf(key)
	if maybe, err := f.lookup(ctx, []hash{h}); err != nil || maybe[0] {
		f.recheckCopy() // it may lack what Redis has
		return err
	}
	f.counts.hidden.Add(1)
	now := time.Now().UTC().Truncate(time.Millisecond)
	if d.Hiding.recent(now) {
		why, err := f.wrong(ctx, d.Active)
		if why == nil {
			return f.failed(errors.Join(err, f.renewHiding(ctx, now)))
		}
		f.warn("its source lacks rows, and it answers \"maybe\" until it was built again: " + why.Error())
	} else {
		f.warn("it has refused a key whose row exists: it answers \"maybe\" until it was built again")
	}
	err = f.dropActive(ctx, d.Active, func(to *descriptor) { to.Hiding = to.Hiding.again(now, h) })
	f.recheckCopy()
	return f.failed(err)
}

// wrong returns why the source of the active generation must be wrong, or nil.
func (f *Redis) wrong(ctx context.Context, g *generation) (why, err error) {
	listed := func() (keys []string, err error) {
		notes, err := f.notesOf(ctx, g)
		var raw [][]byte
		if err != nil || json.Unmarshal([]byte(notes[noteListed]), &raw) != nil {
			return nil, err // none are known
		}
		for _, key := range raw[:min(len(raw), sampleSize)] {
			keys = append(keys, string(key))
		}
		return keys, nil
	}
	holds := func(ctx context.Context, keys []string) ([]bool, error) { return f.holds(ctx, g, hashesOf(keys)) }
	return f.judged.wrong(ctx, g.ID, g.Begun, &f.checkers, listed, holds)
}

// renewHiding keeps further reports from ending the filter for another day.
func (f *Redis) renewHiding(ctx context.Context, now time.Time) error {
	if d := f.known.Load(); d == nil || d.Hiding == nil || now.Sub(d.Hiding.At) < renewAfter {
		return nil
	}
	return f.change(ctx, func(to *descriptor) error {
		if to.Hiding != nil {
			to.Hiding = to.Hiding.renewed(now)
		}
		return nil
	})
}

// Hidden reports a key that the filter has refused although its row exists: see Redis.Hidden. It
// concerns this process only.
func (l *Local) Hidden(ctx context.Context, key string) error {
	if l.has(key) {
		return nil
	}
	g := l.holds.Load().active
	if g == nil {
		return nil
	}
	l.counts.hidden.Add(1)
	now, before := time.Now(), l.hiding.Load()
	if before.recent(now) {
		listed := func() ([]string, error) { return g.listed, nil }
		why, err := l.judged.wrong(ctx, g.id, g.begun, &l.checkers, listed, g.holds)
		if err != nil {
			return fmt.Errorf("bloom: %w", err)
		}
		if why == nil {
			l.hiding.CompareAndSwap(before, before.renewed(now))
			return nil
		}
	}
	l.hiding.Store(before.again(now, hashOf(key)))
	l.change(func(h *holding) bool {
		h.active = nil
		return true
	})
	l.wake()
	return nil
}
