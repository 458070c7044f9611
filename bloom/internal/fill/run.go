// Package fill fills a new generation of a filter with the keys of a source: it waits, reads, adds
// in batches, and resumes after failures. It knows neither Redis nor the filters. Redis.Rebuild and
// Local.Rebuild of package bloom call Run with a Generation of their own.
package fill

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// Source is bloom.Source.
type Source func(ctx context.Context, after string) iter.Seq2[string, error]

// Options are those of bloom.RebuildOptions that a Run needs, with their defaults filled in.
type Options struct {
	Capacity   uint64
	Settle     time.Duration
	Rate       int
	AllowFewer bool
	Progress   func(Progress)

	BatchSize int     // maximum number of keys added in one batch
	Fewer     error   // error of Generation.Check after which the generation is dropped
	Permanent []error // other errors that a retry would repeat
}

// Progress is bloom.Progress.
type Progress struct {
	Keys    uint64
	About   uint64
	Elapsed time.Duration
	Resumed bool
}

// Report has the fields of bloom.Report that a Run knows.
type Report struct {
	Keys    uint64
	Took    time.Duration
	Resumed bool
}

// A Generation receives the keys of a Run. It replaces one that another rebuild has left
// unfinished.
type Generation interface {
	// Add adds keys of the source.
	Add(ctx context.Context, keys []string) error
	// Check fails with Options.Fewer if the generation must not serve.
	Check(ctx context.Context, allowFewer bool) error
	// Drop ends additions to the generation, and discards it.
	Drop(ctx context.Context) error
	// Finish makes the generation serve, and removes the one before it.
	Finish(ctx context.Context) error
}

// MaxBatch is the maximum number of keys of a batch. If a batch has many keys per segment, one
// command merges all bits of the segment.
const MaxBatch = 1 << 18

const (
	maxBatchBytes = 8 << 20
	maxBatchAge   = time.Second           // limits what is read again from a slow source
	rateBurst     = 10 * time.Millisecond // size of the bursts that RebuildOptions.Rate allows

	// MaxFailures is the maximum number of consecutive failures without progress.
	MaxFailures  = 5
	firstBackoff = 200 * time.Millisecond
)

// run is one run of a rebuild.
type run struct {
	options Options
	source  Source
	next    Generation
	limit   *rate.Limiter

	pending      []string // keys that were read and still have to go into the generation
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

// Run fills a new generation with all keys of the source, and makes it serve. begin begins the
// generation, for about capacity keys; if capacity is 0, begin chooses it. When begin returns, all
// additions also go to the generation. expected is the number of keys in the present one.
func Run(
	ctx context.Context, source Source, options Options,
	begin func(ctx context.Context, capacity uint64) (next Generation, expected uint64, err error),
) (Report, error) {
	r := &run{options: options, source: source, startedAt: time.Now()}
	err := r.run(ctx, begin)
	return Report{Keys: r.keys, Took: time.Since(r.startedAt), Resumed: r.resumed}, err
}

func (r *run) run(
	ctx context.Context, begin func(context.Context, uint64) (Generation, uint64, error),
) (err error) {
	if r.next, r.estimated, err = begin(ctx, r.options.Capacity); err != nil {
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
func (r *run) settle(ctx context.Context) error {
	return retry.Sleep(ctx, r.options.Settle)
}

// runWithRetries reads and adds keys until the generation is complete. After a failure it resumes
// after the last key that was added, unless a retry cannot help or several consecutive attempts
// have added nothing.
func (r *run) runWithRetries(ctx context.Context) error {
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
		case r.isPermanent(err):
			return err
		case !r.yielded: // for example, the table does not exist
			return r.withPosition(err)
		case r.after != before && !r.rewinds:
			failures = 0
		}
		if failures++; failures > MaxFailures {
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
func (r *run) isPermanent(err error) bool {
	for _, e := range append(r.options.Permanent, r.options.Fewer) {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// complete makes the generation serve if it has enough keys.
func (r *run) complete(ctx context.Context) error {
	err := r.next.Check(ctx, r.options.AllowFewer)
	switch {
	case errors.Is(err, r.options.Fewer):
		return errors.Join(err, r.next.Drop(ctx))
	case err != nil:
		return err
	}
	return r.next.Finish(ctx)
}

// withPosition adds to err how far the run had come. It shows the hash of the last key instead of
// the key.
func (r *run) withPosition(err error) error {
	h := bitmap.HashOf(r.after)
	return fmt.Errorf("after %d keys, the last of them #%016x: %w", r.keys, h[0], err)
}

// read adds the keys that the source yields after the last key that was added. A panic of the
// source is returned as an error.
func (r *run) read(ctx context.Context) (err error) {
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
func (r *run) detectRewind(after, key string) {
	switch {
	case after == "" && r.keys == 0 && len(r.pending) == 0:
		r.firstKey = key
	case after != "" && key == r.firstKey:
		r.rewinds, r.keys = true, 0
	}
}

// addPending collects a key that was read, and adds the collected keys once there are enough.
func (r *run) addPending(ctx context.Context, key string) error {
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
	if len(r.pending) < r.options.BatchSize && r.pendingBytes < maxBatchBytes && now.Sub(r.pendingSince) < maxBatchAge {
		return nil
	}
	return r.flush(ctx)
}

// flush adds the collected keys and then advances after, so that they are not read again.
func (r *run) flush(ctx context.Context) error {
	n := len(r.pending)
	if n == 0 {
		return ctx.Err()
	}
	last := r.pending[n-1]
	if err := r.next.Add(ctx, r.pending); err != nil {
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

func (r *run) reportProgress() {
	r.reportedAt = time.Now()
	if r.options.Progress != nil {
		r.options.Progress(Progress{Keys: r.keys, About: r.estimated, Elapsed: time.Since(r.startedAt),
			Resumed: r.resumed})
	}
}
