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

	batchSize int     // keys that are added at once, at most; tests have fewer
	replaces  *string // the generation that it is to replace, by its ID; "": none; nil: whichever it is
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
	d.batchSize = cmp.Or(d.batchSize, maxBatch)
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
	maxBatchAge   = time.Second           // after which fewer are, so that little of a slow source is read again
	rateBurst     = 10 * time.Millisecond // the burst of keys that the rate allows

	maxFailures  = 5 // in a row, without a key added between them
	firstBackoff = 200 * time.Millisecond
)

// filling is one run of a rebuild.
type rebuildRun struct {
	options RebuildOptions
	source  Source
	next    building
	limit   *rate.Limiter

	pending      []string // that have been read, and not yet added
	pendingBytes int
	pendingSince time.Time // of the first of them

	after      string // all keys up to this one have been added
	keys       uint64
	estimated  uint64
	startedAt  time.Time
	reportedAt time.Time
	resumed    bool // behind after

	sampled sample // of the keys that the source has yielded

	firstKey string // key of the source
	rewinds  bool   // it has yielded that behind after: it begins again each time
}

// rebuild fills a new generation of t with all keys of the source, and puts it in the place of the
// one before.
func rebuild(ctx context.Context, t target, source Source, options *RebuildOptions) (Report, error) {
	run := &rebuildRun{options: options.withDefaults(), source: source, startedAt: time.Now()}
	if source == nil {
		return Report{}, errors.New("the source is nil")
	}
	if err := run.options.check(); err != nil {
		return Report{}, err
	}
	err := run.run(ctx, t)
	return Report{Keys: run.keys, Took: time.Since(run.startedAt), Resumed: run.resumed}, err
}

func (r *rebuildRun) run(ctx context.Context, t target) (err error) {
	if r.next, r.estimated, err = t.build(ctx, r.options.Capacity); err != nil {
		return err
	}
	if perSecond := r.options.Rate; perSecond > 0 {
		r.limit = rate.NewLimiter(rate.Limit(perSecond), max(1, int(float64(perSecond)*rateBurst.Seconds())))
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.reportedAt = time.Now()
	if err := r.runWithRetries(ctx); err != nil {
		return err
	}
	r.reportProgress()
	return nil
}

// settle waits for the transactions of those who have added to what was there before: their rows
// are not in the new generation unless they are read.
func (r *rebuildRun) settle(ctx context.Context) error {
	return retry.Sleep(ctx, r.options.Settle)
}

// persist reads and adds until all is done. It tries a failed part again, from the last key that
// was added, unless that cannot help or several tries in a row have added nothing.
func (r *rebuildRun) runWithRetries(ctx context.Context) error {
	for failures := 0; ; {
		before := r.after
		err := r.read(ctx)
		if err == nil {
			err = r.complete(ctx)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isPermanent(err):
			return err
		case r.sampled.seen == 0: // as of a table that does not exist
			return r.withPosition(err)
		case r.after != before && !r.rewinds:
			failures = 0
		}
		if failures++; failures > maxFailures {
			return r.withPosition(err)
		}
		r.resumed = r.resumed || r.keys > 0
		if err := retry.Sleep(ctx, time.Duration(float64(firstBackoff<<(failures-1))*(0.5+rand.Float64()))); err != nil {
			return err
		}
	}
}

// inVain tells whether an error would only come again.
func isPermanent(err error) bool {
	for _, e := range []error{errLost, errReplaced, errClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isRefusal(err)
}

// complete has what was built take its place, if it may.
func (r *rebuildRun) complete(ctx context.Context) error {
	err := r.next.check(ctx, r.options.AllowFewer, r.sampled.keys)
	if err == nil {
		err = r.next.finish(ctx)
	}
	if isRefusal(err) {
		return errors.Join(err, r.next.drop(ctx))
	}
	return err
}

// where tells of an error where it was, without the key.
func (r *rebuildRun) withPosition(err error) error {
	h := hashOf(r.after)
	return fmt.Errorf("after %d keys, the last of them #%016x: %w", r.keys, h[0], err)
}

// read adds what the source has behind the last key that was added. A panic of the source is an
// error.
func (r *rebuildRun) read(ctx context.Context) (err error) {
	r.pending, r.pendingBytes = r.pending[:0], 0
	inLibrary := false // what runs
	defer func() {
		if inLibrary {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked with a %T", p) // it may show a key
		}
	}()
	after := r.after
	for key, failed := range r.source(ctx, after) {
		inLibrary = true
		if failed == nil {
			r.detectRewind(after, key)
			failed = r.addPending(ctx, key)
		}
		inLibrary = false
		if failed != nil {
			return failed
		}
	}
	inLibrary = true
	if err := r.flush(ctx); err != nil {
		return err
	}
	return ctx.Err() // a source may just stop when it ends: then that was not all
}

// follow finds out a source that begins again wherever it is to begin: no try gets it over a row
// that fails.
func (r *rebuildRun) detectRewind(after, key string) {
	switch {
	case after == "" && r.keys == 0 && len(r.pending) == 0:
		r.firstKey = key
	case after != "" && key == r.firstKey:
		r.rewinds, r.keys = true, 0
	}
}

// take is for a key that was read.
func (r *rebuildRun) addPending(ctx context.Context, key string) error {
	now := time.Now()
	if len(r.pending) == 0 {
		r.pendingSince = now
	}
	r.pending, r.pendingBytes = append(r.pending, key), r.pendingBytes+len(key)
	r.sampled.add(key)
	if r.limit != nil {
		if err := r.limit.Wait(ctx); err != nil {
			return err
		}
	}
	if len(r.pending) < r.options.batchSize && r.pendingBytes < maxBatchBytes && now.Sub(r.pendingSince) < maxBatchAge {
		return nil
	}
	return r.flush(ctx)
}

// flush adds what was read, and then notes how far that was: what is before that is not read again.
func (r *rebuildRun) flush(ctx context.Context) error {
	n := len(r.pending)
	if n == 0 {
		return ctx.Err()
	}
	last := r.pending[n-1]
	if err := r.next.add(ctx, r.pending); err != nil {
		return err
	}
	r.after, r.keys = last, r.keys+uint64(n)
	clear(r.pending)
	r.pending, r.pendingBytes = r.pending[:0], 0
	if time.Since(r.reportedAt) >= time.Second {
		r.reportProgress()
	}
	return nil
}

func (r *rebuildRun) reportProgress() {
	r.reportedAt = time.Now()
	if r.options.Progress != nil {
		r.options.Progress(Progress{Keys: r.keys, About: r.estimated, Elapsed: time.Since(r.startedAt), Resumed: r.resumed})
	}
}

// grown is the capacity of the next generation of a filter for so many: doubled, so that it stays
// the same while rows come.
func grownCapacity(capacity uint64, rate float64, s State) uint64 {
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
