package bloom

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"
)

// Source yields the keys of all rows, as text, that are behind after, in an order that does not
// change; "" is before all. A Rebuild asks it again behind the last key that it has added where the
// source, or Redis, fails: only the Rebuild that has read that key does so. A source that cannot
// begin in the middle may begin again; then few failures end the Rebuild.
//
// A Source must read what is committed at the time, not a snapshot from before it was called, nor a
// replica that lags. After an error it yields nothing more. See Table and Keys.
type Source func(ctx context.Context, after string) iter.Seq2[string, error]

// RebuildOptions are the settings of one Rebuild. The zero value, and nil, are good defaults.
type RebuildOptions struct {
	// Capacity is for how many keys the new filter is made. Default: that which the filter was made
	// with, doubled as often as it takes for all keys that the present one holds, and a quarter
	// more, if it is found to hold more than that. Set it if there will soon be more keys; Maintain
	// then makes no larger filter, however many keys there are.
	Capacity uint64

	// Settle is how long a transaction may take that inserts rows, from Admit until others can read
	// them. The rebuild waits for so long between the moment from which on every Add also adds to
	// the new filter, and reading the table: the rows of processes that did not know of the new
	// filter are there by then. If a transaction takes longer, its rows are promised to be found
	// only when committed has returned nil; if its process dies between the commit and that, the
	// rows may be missed until the next Rebuild. Default: 10 s. Negative: no wait. Raise it for
	// longer transactions; make it negative if nothing is inserted meanwhile.
	Settle time.Duration

	// Rate is how many keys are read in a second, at most. Default: no limit. Set it if the
	// database has no more to spare.
	Rate int

	// AllowFewer lets the new filter take the place of one that holds more keys: it may have fewer
	// than nine tenths of them, less those of Deleted, or, the first time, none at all. Without
	// AllowFewer that is ErrFewer. Default: false. Set it where many rows are deleted and nobody
	// calls Deleted, and where a table may be empty at first.
	AllowFewer bool

	// Progress is called about once a second while keys are read, and when all are. Progress must
	// not block. Default: none.
	Progress func(Progress)

	batch   int         // keys that are added at once, at most; tests have fewer
	failed  func(error) // is called when nothing can be read, before that is tried again
	instead *string     // the generation that it is to replace, by its ID; "": none; nil: whichever it is
}

// Progress tells how far a Rebuild has come.
type Progress struct {
	Keys    uint64        // that have been added
	About   uint64        // how many there will be, by what the filter holds that is replaced; 0: nothing is known
	Elapsed time.Duration // since the Rebuild began
	Resumed bool          // the source, or Redis, has failed, and it has gone on behind the last key that was added
}

// Report tells what a Rebuild has done.
type Report struct {
	Keys    uint64        // that the source has yielded; some may have been yielded twice
	Took    time.Duration // with what was waited
	Resumed bool          // the source, or Redis, has failed, and it has gone on behind the last key that was added
	State   State         // of the filter, after that; zero if Redis could not be asked for it
}

// target is what a Rebuild fills: a filter in Redis, or in the process.
type target interface {
	// build begins a new generation for about capacity keys (0: as many as the target finds right).
	// It replaces one that another rebuild has left. When build returns, all additions go to the new
	// generation, too. about is how many keys the present one holds.
	build(ctx context.Context, capacity uint64) (next building, about uint64, err error)
}

// building is a generation that is being filled.
type building interface {
	add(ctx context.Context, keys []string) error // what the source has yielded
	// check fails with ErrFewer or ErrHides if it must not answer. listed are some keys of the
	// source.
	check(ctx context.Context, allowFewer bool, listed []string) error
	drop(ctx context.Context) error   // it is refused: nobody adds to it any more
	finish(ctx context.Context) error // it answers from now on, or is refused; what it replaces is removed
}

func (o *RebuildOptions) withDefaults() RebuildOptions {
	var d RebuildOptions
	if o != nil {
		d = *o
	}
	d.batch = cmp.Or(d.batch, maxBatch)
	d.Settle = max(0, cmp.Or(d.Settle, 10*time.Second))
	return d
}

func (o RebuildOptions) check() error {
	switch {
	case o.Capacity > maxSegments*maxBits/64:
		return fmt.Errorf("RebuildOptions.Capacity %d: at most %d", o.Capacity, uint64(maxSegments*maxBits/64))
	case o.Settle > 24*time.Hour:
		return fmt.Errorf("RebuildOptions.Settle %v: at most %v", o.Settle, 24*time.Hour)
	case o.Rate < 0:
		return fmt.Errorf("RebuildOptions.Rate %d: not negative", o.Rate)
	}
	return nil
}
