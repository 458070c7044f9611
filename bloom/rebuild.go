package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/retry"
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

	batch   int     // keys that are added at once, at most; tests have fewer
	instead *string // the generation that it is to replace, by its ID; "": none; nil: whichever it is
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
	// It replaces one that another rebuild has left. When build returns, all additions go to the
	// new generation, too. about is how many keys the present one holds.
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

func (r *RebuildOptions) withDefaults() RebuildOptions {
	var d RebuildOptions
	if r != nil {
		d = *r
	}
	d.batch = cmp.Or(d.batch, maxBatch)
	d.Settle = max(0, cmp.Or(d.Settle, 10*time.Second))
	return d
}

func (r RebuildOptions) check() error {
	switch {
	case r.Capacity > maxSegments*maxBits/64:
		return fmt.Errorf("RebuildOptions.Capacity %d: at most %d", r.Capacity, uint64(maxSegments*maxBits/64))
	case r.Settle > 24*time.Hour:
		return fmt.Errorf("RebuildOptions.Settle %v: at most %v", r.Settle, 24*time.Hour)
	case r.Rate < 0:
		return fmt.Errorf("RebuildOptions.Rate %d: not negative", r.Rate)
	}
	return nil
}

const (
	maxBatch      = 1 << 18 // keys that are added at once: where they are many to a segment, all its bits are merged with one command
	maxBatchBytes = 8 << 20
	batchTime     = time.Second           // after which fewer are, so that little of a slow source is read again
	paceTime      = 10 * time.Millisecond // the burst of keys that the rate allows

	maxFailures  = 5 // in a row, without a key added between them
	firstBackoff = 200 * time.Millisecond
)

// filling is one run of a rebuild.
type filling struct {
	options RebuildOptions
	source  Source
	to      building
	limit   *rate.Limiter

	pending []string // that have been read, and not yet added
	bytes   int
	since   time.Time // of the first of them

	after   string // all keys up to this one have been added
	keys    uint64
	about   uint64
	began   time.Time
	told    time.Time
	resumed bool // behind after

	listed sample // of the keys that the source has yielded

	first   string // key of the source
	rewound bool   // it has yielded that behind after: it begins again each time
}

// rebuild fills a new generation of t with all keys of the source, and puts it in the place of the
// one before.
func rebuild(ctx context.Context, t target, source Source, options *RebuildOptions) (Report, error) {
	r := &filling{options: options.withDefaults(), source: source, began: time.Now()}
	if source == nil {
		return Report{}, errors.New("the source is nil")
	}
	if err := r.options.check(); err != nil {
		return Report{}, err
	}
	err := r.run(ctx, t)
	return Report{Keys: r.keys, Took: time.Since(r.began), Resumed: r.resumed}, err
}

func (f *filling) run(ctx context.Context, t target) (err error) {
	if f.to, f.about, err = t.build(ctx, f.options.Capacity); err != nil {
		return err
	}
	if perSecond := f.options.Rate; perSecond > 0 {
		f.limit = rate.NewLimiter(rate.Limit(perSecond), max(1, int(float64(perSecond)*paceTime.Seconds())))
	}
	if err := f.settle(ctx); err != nil {
		return err
	}
	f.told = time.Now()
	if err := f.persist(ctx); err != nil {
		return err
	}
	f.tell()
	return nil
}

// settle waits for the transactions of those who have added to what was there before: their rows
// are not in the new generation unless they are read.
func (f *filling) settle(ctx context.Context) error {
	return retry.Sleep(ctx, f.options.Settle)
}

// persist reads and adds until all is done. It tries a failed part again, from the last key that
// was added, unless that cannot help or several tries in a row have added nothing.
func (f *filling) persist(ctx context.Context) error {
	for failures := 0; ; {
		before := f.after
		err := f.read(ctx)
		if err == nil {
			err = f.complete(ctx)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case inVain(err):
			return err
		case f.listed.seen == 0: // as of a table that does not exist
			return f.where(err)
		case f.after != before && !f.rewound:
			failures = 0
		}
		if failures++; failures > maxFailures {
			return f.where(err)
		}
		f.resumed = f.resumed || f.keys > 0
		if err := retry.Sleep(ctx, time.Duration(float64(firstBackoff<<(failures-1))*(0.5+rand.Float64()))); err != nil {
			return err
		}
	}
}

// inVain tells whether an error would only come again.
func inVain(err error) bool {
	for _, e := range []error{errLost, errReplaced, errClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return refusal(err)
}

// complete has what was built take its place, if it may.
func (f *filling) complete(ctx context.Context) error {
	err := f.to.check(ctx, f.options.AllowFewer, f.listed.keys)
	if err == nil {
		err = f.to.finish(ctx)
	}
	if refusal(err) {
		return errors.Join(err, f.to.drop(ctx))
	}
	return err
}

// where tells of an error where it was, without the key.
func (f *filling) where(err error) error {
	h := hashOf(f.after)
	return fmt.Errorf("after %d keys, the last of them #%016x: %w", f.keys, h[0], err)
}

// read adds what the source has behind the last key that was added. A panic of the source is an
// error.
func (f *filling) read(ctx context.Context) (err error) {
	f.pending, f.bytes = f.pending[:0], 0
	ours := false // what runs
	defer func() {
		if ours {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked with a %T", p) // it may show a key
		}
	}()
	after := f.after
	for key, failed := range f.source(ctx, after) {
		ours = true
		if failed == nil {
			f.follow(after, key)
			failed = f.take(ctx, key)
		}
		ours = false
		if failed != nil {
			return failed
		}
	}
	ours = true
	if err := f.flush(ctx); err != nil {
		return err
	}
	return ctx.Err() // a source may just stop when it ends: then that was not all
}

// follow finds out a source that begins again wherever it is to begin: no try gets it over a row
// that fails.
func (f *filling) follow(after, key string) {
	switch {
	case after == "" && f.keys == 0 && len(f.pending) == 0:
		f.first = key
	case after != "" && key == f.first:
		f.rewound, f.keys = true, 0
	}
}

// take is for a key that was read.
func (f *filling) take(ctx context.Context, key string) error {
	now := time.Now()
	if len(f.pending) == 0 {
		f.since = now
	}
	f.pending, f.bytes = append(f.pending, key), f.bytes+len(key)
	f.listed.take(key)
	if f.limit != nil {
		if err := f.limit.Wait(ctx); err != nil {
			return err
		}
	}
	if len(f.pending) < f.options.batch && f.bytes < maxBatchBytes && now.Sub(f.since) < batchTime {
		return nil
	}
	return f.flush(ctx)
}

// flush adds what was read, and then notes how far that was: what is before that is not read again.
func (f *filling) flush(ctx context.Context) error {
	n := len(f.pending)
	if n == 0 {
		return ctx.Err()
	}
	last := f.pending[n-1]
	if err := f.to.add(ctx, f.pending); err != nil {
		return err
	}
	f.after, f.keys = last, f.keys+uint64(n)
	clear(f.pending)
	f.pending, f.bytes = f.pending[:0], 0
	if time.Since(f.told) >= time.Second {
		f.tell()
	}
	return nil
}

func (f *filling) tell() {
	f.told = time.Now()
	if f.options.Progress != nil {
		f.options.Progress(Progress{Keys: f.keys, About: f.about, Elapsed: time.Since(f.began), Resumed: f.resumed})
	}
}

// grown is the capacity of the next generation of a filter for so many: doubled, so that it stays
// the same while rows come.
func grown(capacity uint64, rate float64, s State) uint64 {
	if s.Keys <= capacity {
		return capacity
	}
	keys := min(s.Keys, 32*max(s.Capacity, 1)) // no more can be told by bits that are all set
	for capacity < keys+keys/4 && capacity < math.MaxUint64/2 {
		if _, err := shapeFor(2*capacity, rate); err != nil {
			break
		}
		capacity *= 2
	}
	return capacity
}
