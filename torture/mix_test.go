package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// run executes random operations one after another.
func (w *worker) run(goroutine int, r *rand.Rand) {
	for {
		if _, yes := w.stopping(); yes {
			return
		}
		op := history.Op{Goroutine: uint16(goroutine)}
		p := r.IntN(1000)
		if p < 180 {
			op.Key = uint32(w.change(r))
		} else {
			op.Key = uint32(w.read(r))
		}
		switch {
		case p < 120:
			w.update(op, r)
		case p < 180:
			w.touch(op, r)
		case p == 180 && r.IntN(20) == 0: // rare, because it hides missed invalidations
			w.invalidateAll(op)
		case p < 340:
			w.one(op, history.Fresh, r)
		case p < 370:
			w.many(op, history.Fresh, r)
		case p < 400:
			w.one(op, history.Refresh, r)
		case p < 440:
			w.many(op, history.Get, r)
		case p < 470:
			if h, ok := w.tokens.some(r); ok {
				w.after(op, h, r)
			}
		default:
			w.one(op, history.Get, r)
		}
		time.Sleep(pick(r, 3*time.Millisecond))
	}
}

// read chooses a key to read: often a hot one, among them most often the first; often a warm one;
// or a cold one.
func (w *worker) read(r *rand.Rand) int { return w.key(r, 50, 25) }

// change chooses a key to write or to invalidate. Warm keys are read often and changed rarely, so a
// process would serve a missed change of them for long. On a hot key, the next change would hide
// it.
func (w *worker) change(r *rand.Rand) int { return w.key(r, 60, 2) }

func (w *worker) key(r *rand.Rand, hot, warm int) int {
	switch p := r.IntN(100); {
	case p < hot:
		f := r.Float64()
		return int(f * f * hotKeys)
	case p < hot+warm:
		return hotKeys + r.IntN(warmKeys)
	default:
		return hotKeys + warmKeys + r.IntN(coldKeys)
	}
}

// timeout returns the time limit of an operation. A few callers leave soon.
func timeout(r *rand.Rand) time.Duration {
	if r.IntN(100) < 8 {
		return time.Millisecond + pick(r, 40*time.Millisecond)
	}
	return opTimeout
}

// one reads one key.
func (w *worker) one(op history.Op, kind history.Kind, r *rand.Rand) {
	limit := timeout(r)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	op.Kind, op.Timeout = kind, uint32(limit.Microseconds())
	before := w.loader.unvalidated()
	op.Start = history.Now()
	var got row
	var err error
	switch kind {
	case history.Get:
		got, err = w.loader.Get(ctx, int(op.Key))
	case history.Fresh:
		got, err = w.loader.Get(ctx, int(op.Key), cacheaside.Fresh)
	case history.Refresh:
		got, err = w.loader.Refresh(ctx, int(op.Key))
	}
	op.End = history.Now()
	if kind == history.Fresh && w.loader.unvalidated() != before {
		op.Flags |= history.Unvalidated // this read, or a concurrent one of this process
	}
	w.record.Record(w.saw(op, got, err))
}

// saw completes a read. A missing row has version 0. A row of another key, or with parts of two
// versions, is invalid.
func (w *worker) saw(op history.Op, got row, err error) history.Op {
	switch {
	case err != nil && !errors.Is(err, cacheaside.ErrNotFound):
		op.Flags |= history.Failed
	case err == nil && got.Key == int(op.Key) && w.whole(got):
		op.Version = got.Version
	}
	return op
}

// many reads several keys in a batch.
func (w *worker) many(op history.Op, kind history.Kind, r *rand.Rand) {
	limit := timeout(r)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	op.Kind, op.Timeout, op.Flags = kind, uint32(limit.Microseconds()), history.Many
	keys := []int{int(op.Key)}
	for range 1 + r.IntN(6) {
		keys = append(keys, w.read(r))
	}
	var options []cacheaside.ReadOption
	if kind == history.Fresh {
		options = append(options, cacheaside.Fresh)
	}
	before := w.loader.unvalidated()
	op.Start = history.Now()
	found, err := w.loader.GetMany(ctx, keys, options...)
	op.End = history.Now()
	if kind == history.Fresh && w.loader.unvalidated() != before {
		op.Flags |= history.Unvalidated
	}
	failed, partly := errors.AsType[*cacheaside.BatchError[int]](err)
	ops := make([]history.Op, 0, len(keys))
	for _, key := range keys {
		one, of := op, err
		one.Key = uint32(key)
		if partly {
			of = failed.Errs[key]
		}
		ops = append(ops, w.saw(one, found[key], of))
	}
	w.record.Record(ops...)
}

// update writes a row, and repeats its invalidation until one is acknowledged.
func (w *worker) update(op history.Op, r *rand.Rand) {
	op.Kind, op.Start = history.Begin, history.Now()
	w.record.Record(op)
	collecting, token := cacheaside.Collect(context.Background())
	ctx, cancel := context.WithTimeout(collecting, 10*time.Second)
	defer cancel()
	var err error
	op.Kind = history.Commit
	strict := w.wide != nil && r.IntN(3) == 0
	if strict {
		op.Version, err = w.strictly(ctx, op, r)
	} else {
		op.Version, err = w.write(ctx, r, int(op.Key))
	}
	op.End = history.Now()
	if err == nil {
		w.record.Record(op)
	} // otherwise it may have committed, and needs an invalidation too
	if strict && err == nil { // it has invalidated the row
		w.record.Record(history.Op{Goroutine: op.Goroutine, Key: op.Key, Kind: history.Invalidate, Start: op.End,
			End: op.End})
		w.handOn(handedOn{op.Key, op.Version, op.End, token()}, r)
		return
	}
	if err != nil {
		op.Version = 0
	}
	outdate, whole := w.outdate(collecting, op, r)
	for !outdate() {
		if since, yes := w.stopping(); yes && since > 2*time.Second {
			return
		}
		time.Sleep(pick(r, 20*time.Millisecond))
	}
	if whole && op.Version != 0 {
		w.handOn(handedOn{op.Key, op.Version, history.Now(), token()}, r)
	}
}

// outdate chooses how to invalidate a row after a write: its key, the groups that the row has left
// and entered, the group in which it stays, or all of these in one call. The returned function
// reports whether the invalidation was acknowledged. Without the version, the groups are unknown.
// whole reports whether the invalidation outdates all older versions.
func (w *worker) outdate(ctx context.Context, op history.Op, r *rand.Rand) (outdate func() bool, whole bool) {
	of := history.Op{Goroutine: op.Goroutine, Key: op.Key}
	p := r.IntN(10)
	// A combined call has no order.
	if !w.Groups || op.Version == 0 || p < 4 || p == 9 && w.wide != nil {
		return func() bool { return w.invalidate(ctx, of) }, true
	}
	was, is := groupsOf(op.Key, op.Version-1), groupsOf(op.Key, op.Version)
	switch {
	case p < 7:
		return func() bool { return w.invalidateGroup(ctx, of, was[0]) && w.invalidateGroup(ctx, of, is[0]) }, false
	case p < 9:
		return func() bool { return w.invalidateGroup(ctx, of, is[1]) }, true
	default:
		return func() bool { return w.invalidateTogether(ctx, of, was[0], is[0], is[1]) }, true
	}
}

// touch invalidates a row, or one of its possible groups, although nothing has changed.
func (w *worker) touch(op history.Op, r *rand.Rand) {
	if w.Groups && r.IntN(2) == 0 {
		w.invalidateGroup(context.Background(), op, groupsOf(op.Key, r.Int64N(3))[r.IntN(2)])
	} else {
		w.invalidate(context.Background(), op)
	}
}

// invalidateGroup reports whether the invalidation was acknowledged.
func (w *worker) invalidateGroup(ctx context.Context, op history.Op, group uint32) bool {
	const limit = time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	op.Kind, op.Key, op.Timeout, op.Start = history.InvalidateGroup, group, uint32(limit.Microseconds()), history.Now()
	var err error
	if w.wide != nil { // first the loader that others load from
		err = w.wide.parts.InvalidateGroup(ctx, groupName(group))
	}
	return w.acknowledged(op, errors.Join(err, w.loader.InvalidateGroup(ctx, groupName(group))))
}

// invalidate reports whether the invalidation was acknowledged.
func (w *worker) invalidate(ctx context.Context, op history.Op) bool {
	const limit = time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	op.Kind, op.Timeout, op.Start = history.Invalidate, uint32(limit.Microseconds()), history.Now()
	if w.wide != nil {
		return w.acknowledged(op, w.loader.cache.InvalidateKeys(ctx, w.keysOf(int(op.Key))...))
	}
	return w.acknowledged(op, w.loader.Invalidate(ctx, int(op.Key)))
}

// invalidateTogether invalidates a row and groups in one call, and reports whether that was
// acknowledged.
func (w *worker) invalidateTogether(ctx context.Context, op history.Op, groups ...uint32) bool {
	const limit = time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	keys := []cacheaside.Key{w.loader.Key(int(op.Key))}
	for _, group := range groups {
		keys = append(keys, w.loader.GroupKey(groupName(group)))
	}
	op.Kind, op.Timeout, op.Start = history.Invalidate, uint32(limit.Microseconds()), history.Now()
	err := w.loader.cache.InvalidateKeys(ctx, keys...)
	op.End = history.Now()
	if err != nil {
		op.Flags |= history.Failed
	}
	ops := []history.Op{op}
	for _, group := range groups {
		op.Kind, op.Key = history.InvalidateGroup, group
		ops = append(ops, op)
	}
	w.record.Record(ops...)
	return err == nil
}

func (w *worker) invalidateAll(op history.Op) {
	const limit = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	op.Kind, op.Timeout, op.Start = history.InvalidateAll, uint32(limit.Microseconds()), history.Now()
	var err error
	if w.wide != nil {
		err = w.wide.parts.InvalidateAll(ctx)
	}
	w.acknowledged(op, errors.Join(err, w.loader.InvalidateAll(ctx)))
}

func (w *worker) acknowledged(op history.Op, err error) bool {
	op.End = history.Now()
	if err != nil {
		op.Flags |= history.Failed
	}
	w.record.Record(op)
	return err == nil
}
