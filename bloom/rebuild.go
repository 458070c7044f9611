package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
	"github.com/cacheaside/cacheaside/bloom/internal/fill"
)

// Source yields the keys of all rows as text, in a fixed order, starting with the key that follows
// after. If after is empty, it starts with the first key. If the source or Redis fails, a Rebuild
// calls the source again with the last key that it has added. It never passes a key that another
// Rebuild has read. A source that cannot start in the middle may start again with the first key.
// Its Rebuild tolerates only a few failures in all.
//
// A Source must read what is committed at the time. It must not read from a snapshot taken before
// it was called, nor from a replica that lags. After an error it yields nothing more. See Table
// and Keys.
type Source func(ctx context.Context, after string) iter.Seq2[string, error]

// RebuildOptions are the settings of one Rebuild. The zero value and nil use the defaults.
type RebuildOptions struct {
	// Capacity is the number of keys that the new filter is built for. Default: the capacity
	// given to the constructor. If the present filter holds more keys than that, the default is
	// doubled until it exceeds their number by a quarter. If the present filter has lost
	// segments, it is also doubled up to the capacity of that filter. Set it if the number of
	// keys is about to grow. If it is set, Maintain does not enlarge the filter, however many keys
	// there are.
	Capacity uint64

	// Settle is the maximum duration of a transaction that inserts rows, from Inserting until other
	// transactions can read the rows. Once all Adds also write to the new filter, the rebuild
	// waits for Settle before it reads the table. By then the table contains the rows of
	// processes that did not know of the new filter. If a transaction takes longer, its rows are
	// guaranteed to be found only after committed has returned nil. If its process dies between
	// the commit and that, lookups may miss the rows until the next Rebuild. Default: 10 s.
	// Negative: no wait. Raise it for longer transactions. Make it negative if no rows are
	// inserted during the rebuild.
	Settle time.Duration

	// Rate is the maximum number of keys read per second. Default: no limit. Set it to limit the
	// load on the database.
	Rate int

	// AllowFewer lets the new filter replace one that holds more keys. The new filter may then
	// have fewer than nine tenths of these keys, not counting those that Deleted has reported;
	// the first filter may have no keys. Otherwise the Rebuild fails with ErrFewer. Default:
	// false. Set it if many rows are deleted without calls of Deleted, or to build an empty filter
	// of an empty table.
	AllowFewer bool

	// AllowForeign lets the new filter replace one that was built from another table, or for a
	// Cache with another Options.Prefix. Otherwise the Rebuild fails with ErrForeign. Default:
	// false. Set it for one Rebuild after the table or the column was renamed.
	AllowForeign bool

	// Progress is called about once a second while keys are read, and once after the last key. It
	// must not block. Default: none.
	Progress func(Progress)

	batchSize int     // maximum number of keys added in one batch; tests lower it
	replaces  *string // ID of the generation to replace; empty: there must be none; nil: any
}

// Progress describes how far a Rebuild has come.
type Progress struct {
	Keys    uint64        // number of keys added
	About   uint64        // expected number of keys, from the filter that is being replaced; 0 if unknown
	Elapsed time.Duration // since the Rebuild began

	// Resumed reports whether the source or Redis has failed, and the Rebuild has resumed after
	// the last key that it had added.
	Resumed bool
}

// Report describes a finished Rebuild.
type Report struct {
	Keys uint64        // number of keys that the source yielded; some may have been yielded twice
	Took time.Duration // total duration, including waits

	// Resumed reports whether the source or Redis has failed, and the Rebuild has resumed after
	// the last key that it had added.
	Resumed bool
	State   State // state of the new filter; zero if Redis could not be queried
}

func (r *RebuildOptions) withDefaults() RebuildOptions {
	var d RebuildOptions
	if r != nil {
		d = *r
	}
	d.batchSize = cmp.Or(d.batchSize, fill.MaxBatch)
	d.Settle = max(0, cmp.Or(d.Settle, 10*time.Second))
	return d
}

func (r RebuildOptions) check() error {
	switch {
	case r.Capacity > bitmap.MaxCapacity:
		return fmt.Errorf("RebuildOptions.Capacity %d: at most %d", r.Capacity, uint64(bitmap.MaxCapacity))
	case r.Settle > 24*time.Hour:
		return fmt.Errorf("RebuildOptions.Settle %v: at most %v", r.Settle, 24*time.Hour)
	case r.Rate < 0:
		return fmt.Errorf("RebuildOptions.Rate %d: must not be negative", r.Rate)
	}
	return nil
}

// target is a filter that a Rebuild replaces, in Redis or in the process. build is the function
// begin of fill.Run.
type target interface {
	build(ctx context.Context, capacity uint64) (next fill.Generation, expected uint64, err error)
}

// rebuild fills a new generation of t with all keys of the source, and replaces the present
// generation with it.
func rebuild(ctx context.Context, t target, source Source, options *RebuildOptions) (Report, error) {
	if source == nil {
		return Report{}, errors.New("the source is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return Report{}, err
	}
	settings := fill.Options{Capacity: o.Capacity, Settle: o.Settle, Rate: o.Rate, AllowFewer: o.AllowFewer,
		BatchSize: o.batchSize, Fewer: ErrFewer, Permanent: []error{errLost, errReplaced, errClosed, ErrForeign}}
	if o.Progress != nil {
		settings.Progress = func(p fill.Progress) { o.Progress(Progress(p)) }
	}
	report, err := fill.Run(ctx, fill.Source(source), settings, t.build)
	return Report{Keys: report.Keys, Took: report.Took, Resumed: report.Resumed}, err
}

// grownCapacity returns the capacity of the next generation of a filter for at least capacity
// keys. It grows by doubling, so that it rarely changes while rows are added. After a loss, it is
// at least the present capacity, because s.Keys does not include the keys of lost segments.
func grownCapacity(capacity uint64, rate float64, s State) uint64 {
	want := capacity
	if s.Keys > capacity {
		keys := min(s.Keys, 32*max(s.Capacity, 1)) // a nearly full filter cannot estimate more keys
		want = keys + keys/4
	}
	if s.LostSegments > 0 {
		want = max(want, s.Capacity)
	}
	for capacity < want && capacity < math.MaxUint64/2 {
		if _, err := bitmap.ShapeFor(2*capacity, rate); err != nil {
			break
		}
		capacity *= 2
	}
	return capacity
}
