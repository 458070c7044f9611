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

	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
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

	// Settle is the maximum duration of a transaction that inserts rows, from Admit until other
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
	// false. Set it if many rows are deleted without calls of Deleted, or if the table can be
	// empty at first.
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

// target is a filter that a Rebuild replaces, in Redis or in the process.
type target interface {
	// build begins a new generation for about capacity keys. If capacity is 0, the target chooses
	// it. The new generation replaces one that another rebuild has left unfinished. When build
	// returns, all additions also go to the new generation. about is the number of keys in the
	// present one.
	build(ctx context.Context, capacity uint64) (next building, about uint64, err error)
}

// building is a generation that is being filled.
type building interface {
	add(ctx context.Context, keys []string) error     // adds keys of the source
	check(ctx context.Context, allowFewer bool) error // fails with ErrFewer if the generation must not serve
	drop(ctx context.Context) error                   // ends additions to the generation, and discards it
	finish(ctx context.Context) error                 // makes the generation serve, and removes the one before it
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
	case r.Capacity > bitmap.MaxCapacity:
		return fmt.Errorf("RebuildOptions.Capacity %d: at most %d", r.Capacity, uint64(bitmap.MaxCapacity))
	case r.Settle > 24*time.Hour:
		return fmt.Errorf("RebuildOptions.Settle %v: at most %v", r.Settle, 24*time.Hour)
	case r.Rate < 0:
		return fmt.Errorf("RebuildOptions.Rate %d: must not be negative", r.Rate)
	}
	return nil
}

const (
	maxBatch      = 1 << 18 // keys; if a batch has many keys per segment, one command merges all bits of the segment
	maxBatchBytes = 8 << 20
	maxBatchAge   = time.Second           // limits what is read again from a slow source
	rateBurst     = 10 * time.Millisecond // size of the bursts that RebuildOptions.Rate allows

	maxFailures  = 5 // maximum number of consecutive failures without progress
	firstBackoff = 200 * time.Millisecond
)

// rebuildRun is one run of a rebuild.
type rebuildRun struct {
	options RebuildOptions
	source  Source
	next    building
	limit   *rate.Limiter

	pending      []string // keys that were read and not yet added
	pendingBytes int
	pendingSince time.Time // when the first of them was read

	after      string // all keys up to this one have been added
	keys       uint64
	estimated  uint64
	startedAt  time.Time
	reportedAt time.Time
	resumed    bool // the source was called again with after

	yielded bool // the source has yielded a key

	firstKey string // first key of the source
	rewinds  bool   // the source yields firstKey again after other keys: it cannot begin in the middle
}

// rebuild fills a new generation of t with all keys of the source, and replaces the present
// generation with it.
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

// settle waits for transactions that have added keys only to the previous generation. The new
// generation contains their rows only if it reads them from the source.
func (r *rebuildRun) settle(ctx context.Context) error {
	return retry.Sleep(ctx, r.options.Settle)
}

// runWithRetries reads and adds keys until the generation is complete. After a failure it resumes
// after the last key that was added, unless a retry cannot help or several consecutive attempts
// have added nothing.
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
		case !r.yielded: // for example, the table does not exist
			return r.withPosition(err)
		case r.after != before && !r.rewinds:
			failures = 0
		}
		if failures++; failures > maxFailures {
			return r.withPosition(err)
		}
		r.resumed = r.resumed || r.keys > 0
		if err := retry.Sleep(ctx,
			time.Duration(float64(firstBackoff<<(failures-1))*(0.5+rand.Float64()))); err != nil {
			return err
		}
	}
}

// isPermanent reports whether a retry would return the same error.
func isPermanent(err error) bool {
	for _, e := range []error{errLost, errReplaced, errClosed, ErrForeign, ErrFewer} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// complete makes the generation serve if it has enough keys.
func (r *rebuildRun) complete(ctx context.Context) error {
	err := r.next.check(ctx, r.options.AllowFewer)
	switch {
	case errors.Is(err, ErrFewer):
		return errors.Join(err, r.next.drop(ctx))
	case err != nil:
		return err
	}
	return r.next.finish(ctx)
}

// withPosition adds to err how far the run had come. It shows the hash of the last key instead of
// the key.
func (r *rebuildRun) withPosition(err error) error {
	h := bitmap.HashOf(r.after)
	return fmt.Errorf("after %d keys, the last of them #%016x: %w", r.keys, h[0], err)
}

// read adds the keys that the source yields after the last key that was added. A panic of the
// source is returned as an error.
func (r *rebuildRun) read(ctx context.Context) (err error) {
	r.pending, r.pendingBytes = r.pending[:0], 0
	inLibrary := false // false while code of the source runs
	defer func() {
		if inLibrary {
			return
		}
		if p := recover(); p != nil {
			err = limitedlog.Panicked("the source", p) // its text does not contain the value, which may be a key
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
	return ctx.Err() // a source may stop without an error when ctx ends, before its last key
}

// detectRewind detects a source that ignores after and begins again from the first key. Retries
// cannot get such a source past a row that fails.
func (r *rebuildRun) detectRewind(after, key string) {
	switch {
	case after == "" && r.keys == 0 && len(r.pending) == 0:
		r.firstKey = key
	case after != "" && key == r.firstKey:
		r.rewinds, r.keys = true, 0
	}
}

// addPending collects a key that was read, and adds the collected keys once there are enough.
func (r *rebuildRun) addPending(ctx context.Context, key string) error {
	now := time.Now()
	if len(r.pending) == 0 {
		r.pendingSince = now
	}
	r.pending, r.pendingBytes = append(r.pending, key), r.pendingBytes+len(key)
	r.yielded = true
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

// flush adds the collected keys and then advances after, so that they are not read again.
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
		r.options.Progress(Progress{Keys: r.keys, About: r.estimated, Elapsed: time.Since(r.startedAt),
			Resumed: r.resumed})
	}
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
