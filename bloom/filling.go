package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/retry"
)

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

func (r *filling) run(ctx context.Context, t target) (err error) {
	if r.to, r.about, err = t.build(ctx, r.options.Capacity); err != nil {
		return err
	}
	if perSecond := r.options.Rate; perSecond > 0 {
		r.limit = rate.NewLimiter(rate.Limit(perSecond), max(1, int(float64(perSecond)*paceTime.Seconds())))
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.told = time.Now()
	if err := r.persist(ctx); err != nil {
		return err
	}
	r.tell()
	return nil
}

// settle waits for the transactions of those who have added to what was there before: their rows
// are not in the new generation unless they are read.
func (r *filling) settle(ctx context.Context) error {
	return retry.Sleep(ctx, r.options.Settle)
}

// persist reads and adds until all is done. A failed part is tried again, from the last key that
// was added, unless it is in vain, or that key was the same several times.
func (r *filling) persist(ctx context.Context) error {
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
		case inVain(err):
			return err
		case r.after != before && !r.rewound:
			failures = 0
		}
		if failures++; failures > maxFailures {
			return r.where(err)
		}
		if r.keys == 0 && failures == 1 && r.options.failed != nil {
			r.options.failed(r.where(err))
		}
		r.resumed = r.resumed || r.keys > 0
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
func (r *filling) complete(ctx context.Context) error {
	err := r.to.check(ctx, r.options.AllowFewer, r.listed.keys)
	if err == nil {
		err = r.to.finish(ctx)
	}
	if refusal(err) {
		return errors.Join(err, r.to.drop(ctx))
	}
	return err
}

// where tells of an error where it was, without the key.
func (r *filling) where(err error) error {
	h := hashOf(r.after)
	return fmt.Errorf("after %d keys, the last of them #%016x: %w", r.keys, h[0], err)
}

// read adds what the source has behind the last key that was added. A panic of the source is an
// error.
func (r *filling) read(ctx context.Context) (err error) {
	r.pending, r.bytes = r.pending[:0], 0
	ours := false // what runs
	defer func() {
		if ours {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked with a %T", p) // it may show a key
		}
	}()
	after := r.after
	for key, failed := range r.source(ctx, after) {
		ours = true
		if failed == nil {
			r.follow(after, key)
			failed = r.take(ctx, key)
		}
		ours = false
		if failed != nil {
			return failed
		}
	}
	ours = true
	if err := r.flush(ctx); err != nil {
		return err
	}
	return ctx.Err() // a source may just stop when it ends: then that was not all
}

// follow finds out a source that begins again wherever it is to begin: no try gets it over a row
// that fails.
func (r *filling) follow(after, key string) {
	switch {
	case after == "" && r.keys == 0 && len(r.pending) == 0:
		r.first = key
	case after != "" && key == r.first:
		r.rewound, r.keys = true, 0
	}
}

// take is for a key that was read.
func (r *filling) take(ctx context.Context, key string) error {
	now := time.Now()
	if len(r.pending) == 0 {
		r.since = now
	}
	r.pending, r.bytes = append(r.pending, key), r.bytes+len(key)
	r.listed.take(key)
	if r.limit != nil {
		if err := r.limit.Wait(ctx); err != nil {
			return err
		}
	}
	if len(r.pending) < r.options.batch && r.bytes < maxBatchBytes && now.Sub(r.since) < batchTime {
		return nil
	}
	return r.flush(ctx)
}

// flush adds what was read, and then notes how far that was: what is before that is not read again.
func (r *filling) flush(ctx context.Context) error {
	n := len(r.pending)
	if n == 0 {
		return ctx.Err()
	}
	last := r.pending[n-1]
	if err := r.to.add(ctx, r.pending); err != nil {
		return err
	}
	r.after, r.keys = last, r.keys+uint64(n)
	clear(r.pending)
	r.pending, r.bytes = r.pending[:0], 0
	if time.Since(r.told) >= time.Second {
		r.tell()
	}
	return nil
}

func (r *filling) tell() {
	r.told = time.Now()
	if r.options.Progress != nil {
		r.options.Progress(Progress{Keys: r.keys, About: r.about, Elapsed: time.Since(r.began), Resumed: r.resumed})
	}
}
