package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/check"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// MaintainOptions are the settings of Maintain. The zero value, and nil, are good defaults.
type MaintainOptions struct {
	// Every is how old a filter may become before it is built anew, for the keys of deleted rows,
	// and for rows that nobody has told of. Default: 24 hours. At least 1 second; negative: any
	// age. Raise it for a large table that changes little; lower it if rows are often deleted where
	// nobody calls Deleted.
	Every time.Duration

	// Check is about how often each process looks whether a rebuild is due. After a restart of
	// Redis, see Maintain, the filter may answer "maybe" for so long before it is built again.
	// Default: 1 minute. From 100 ms to 24 hours.
	Check time.Duration

	// MaxRate is the rate of false positives, as this process measures it (see NotFound), from
	// which on the filter is built anew. Default: four times the rate that it was made for. At most
	// 1, which is never.
	MaxRate float64

	// Rebuild are the settings of each rebuild. Default: those of a Rebuild with nil.
	Rebuild *RebuildOptions

	// Failed is called with each error of a check, or a rebuild, after which Maintain goes on, and
	// looks again after Check; also when a source fails before its first key, which is then tried
	// again at once. Failed must not block. Stats.Failures counts these errors. Default: slog.Error
	// of the default logger.
	Failed func(error)
}

func (o *MaintainOptions) withDefaults() MaintainOptions {
	var d MaintainOptions
	if o != nil {
		d = *o
	}
	d.Every = cmp.Or(d.Every, 24*time.Hour)
	d.Check = cmp.Or(d.Check, time.Minute)
	return d
}

func (o MaintainOptions) check() error {
	if !(o.MaxRate >= 0 && o.MaxRate <= 1) {
		return fmt.Errorf("MaintainOptions.MaxRate %v: from 0 to 1", o.MaxRate)
	}
	if o.Every > 0 && o.Every < time.Second {
		return fmt.Errorf("MaintainOptions.Every %v: at least 1s, or negative", o.Every)
	}
	err := check.Range("MaintainOptions.Check", o.Check, 100*time.Millisecond, 24*time.Hour)
	if r := o.Rebuild.withDefaults().check(); err == nil && r != nil {
		err = fmt.Errorf("MaintainOptions.Rebuild: %w", r)
	}
	return err
}

// maintained is a filter that is looked after.
type maintained interface {
	// failing counts an error of which MaintainOptions.Failed is told.
	failing()
	// due tells whether it is to be rebuilt now. w is what was seen before, for it to keep.
	due(ctx context.Context, o MaintainOptions, w *watched) (bool, error)
	Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error)
}

// watched is what a process has seen of a filter at the last check.
type watched struct {
	stats      Stats  // at the beginning of what is measured
	generation string // that it is of
	lost       int64  // of Stats
	active     string // the generation that answered when the filter was found to be due
}

// maintain looks after a filter until ctx ends, or the filter is closed.
func maintain(ctx context.Context, m maintained, source Source, options *MaintainOptions) error {
	o := options.withDefaults()
	if source == nil {
		return errors.New("bloom: the source is nil")
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("bloom: %w", err)
	}
	o = o.telling(m)
	var w watched
	for ctx.Err() == nil {
		began := time.Now()
		err := look(ctx, m, source, o, &w)
		if errors.Is(err, errClosed) {
			return err
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRebuilding) {
			o.Failed(err)
		}
		var early <-chan struct{} // nil: never
		if e, ok := m.(interface{ early() <-chan struct{} }); ok {
			early = e.early()
		}
		pause := o.Check*3/4 + rand.N(o.Check/2) // not all processes at once
		switch {
		case refusal(err):
			pause = max(pause, rest*time.Since(began))
		case err != nil:
			pause = max(pause, time.Since(began)) // what fails does not read the table all the time
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-early:
		case <-ctx.Done():
		}
		wait.Stop()
	}
	return context.Cause(ctx)
}

// quietFor is for how long nothing more is logged of a filter that keeps failing.
const quietFor = limitedlog.QuietFor

// logger logs failures, at most once in quietFor.
func logger() func(error) {
	limit := limitedlog.Limit[string]{Quiet: quietFor}
	const failed = "cacheaside: a filter could not be looked after"
	return func(err error) {
		if times, due := limit.Count(failed); due {
			slog.Error(failed, "error", err, "times", times)
			limit.Pass(failed)
		}
	}
}

// telling has all failures be counted, and told of, also those of a source that cannot be read at
// all.
func (o MaintainOptions) telling(m maintained) MaintainOptions {
	tell := o.Failed
	if tell == nil {
		tell = logger()
	}
	o.Failed = func(err error) {
		m.failing()
		tell(err)
	}
	var r RebuildOptions
	if o.Rebuild != nil {
		r = *o.Rebuild
	}
	r.failed = func(err error) { o.Failed(fmt.Errorf("bloom: a rebuild begins again: %w", err)) }
	o.Rebuild = &r
	return o
}

// look is one check.
func look(ctx context.Context, m maintained, source Source, o MaintainOptions, w *watched) error {
	due, err := m.due(ctx, o, w)
	if err != nil || !due {
		return err
	}
	r := *o.Rebuild // which is not nil: see telling
	r.instead = &w.active
	_, err = m.Rebuild(ctx, source, &r)
	return err
}

// next is the capacity that a rebuild would give a filter.
func (o MaintainOptions) next(capacity uint64, rate float64, s State) uint64 {
	if o.Rebuild != nil && o.Rebuild.Capacity > 0 {
		return o.Rebuild.Capacity
	}
	return grown(capacity, rate, s)
}

// worn reports whether a generation has too many false positives, too many keys, where the next would
// be for more, or too many keys of rows that are gone. It does not count those of a young one: took is
// how long its rebuild took.
func (w *watched) worn(o MaintainOptions, g generationAge, s State, now Stats, next uint64) bool {
	tooMany := w.tooMany(now, g.id, cmp.Or(o.MaxRate, min(1, 4*s.Rate))) && g.age >= time.Hour
	full := float64(s.Keys) > 1.1*float64(s.Capacity) && next > s.Capacity
	gone := s.Deleted > s.Keys/2 && s.Deleted >= minSamples
	return (tooMany || full || gone) && !g.young()
}

// generationAge is what Maintain knows of the age of a generation.
type generationAge struct {
	id        string
	age, took time.Duration
}

// rest is how many times as long as a rebuild took Maintain waits before the next one that is not for
// the age of the filter, or after one that was refused.
const rest = 5

// young reports whether the generation was built just now.
func (g generationAge) young() bool { return g.age < (1+rest)*g.took }

// minSamples is how many keys that are not there must have been asked for before the measured rate
// counts.
const minSamples = 1000

// tooMany tells whether the measured rate of false positives is above what is allowed, since the
// generation is what it is, or since the last time that there were samples enough.
func (w *watched) tooMany(now Stats, generation string, maxRate float64) bool {
	if w.generation != generation {
		w.generation, w.stats = generation, now
		return false
	}
	unsure := now.Unknown - w.stats.Unknown // they may be among those of which NotFound has told
	since := Stats{FalsePositives: max(0, now.FalsePositives-w.stats.FalsePositives-unsure), Absent: now.Absent - w.stats.Absent}
	if since.FalsePositives+since.Absent < minSamples {
		return false
	}
	w.stats = now
	return since.FalsePositiveRate() > maxRate
}
