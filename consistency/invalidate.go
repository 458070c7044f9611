package consistency

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
)

// isOne reports whether k is one key, and not all keys or a group of its loader. Filters admit only
// such keys.
func isOne(k cacheaside.Key) bool { return !k.All && !k.Group }

// An invalidator is the part of a Cache that both a Relay and a Writer use.
type invalidator interface {
	InsertingKeys(ctx context.Context, keys ...cacheaside.Key) (committed func(context.Context) error, err error)
	InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error
	RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error
}

// errSlow is the error of a filter that has used half of the time.
var errSlow = errors.New("the filter did not respond in time")

// failures holds the errors of the keys for which a call has failed.
type failures map[cacheaside.Key]error

// join adds the errors in more.
func (f failures) join(more failures) {
	for key, err := range more {
		f[key] = errors.Join(f[key], err)
	}
}

// among returns those of keys that have an error, in the order of keys.
func (f failures) among(keys []cacheaside.Key) (failed []cacheaside.Key) {
	for _, key := range keys {
		if f[key] != nil {
			failed = append(failed, key)
		}
	}
	return failed
}

// err returns the errors as one *cacheaside.BatchError, or nil if there are none.
func (f failures) err() error {
	if len(f) == 0 {
		return nil
	}
	return &cacheaside.BatchError[cacheaside.Key]{Errs: f}
}

// allFailed returns err for each of keys.
func allFailed(keys []cacheaside.Key, err error) failures {
	errs := make(failures, len(keys))
	for _, k := range keys {
		errs[k] = err
	}
	return errs
}

// invalidate adds changed keys to their filters and invalidates them. It returns the keys for
// which either has failed, and why. A filter that fails, or hangs until its context ends, does
// not prevent the invalidation.
func invalidate(ctx context.Context, cache invalidator, keys []cacheaside.Key) (failed failures) {
	first, cancel := half(ctx)
	defer cancel()
	committed, admitted, failed := admit(first, cache.InsertingKeys, keys)
	retried := slices.Collect(maps.Keys(failed))
	maps.Copy(failed, failuresOf(admitted, committed(first)))
	if first.Err() != nil && ctx.Err() == nil { // the invalidation after the filter had no time
		retried = slices.Collect(maps.Keys(failed))
		failed = allFailed(retried, errSlow)
	}
	if len(retried) > 0 {
		failed.join(failuresOf(retried, cache.InvalidateKeys(ctx, retried...)))
	}
	return failed
}

// half returns a context with half of the time that ctx has left.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, time.Now().Add(time.Until(deadline)/2))
}

// admit adds the keys to their filters by means of call, which is InsertingKeys or InsertingHeld.
// It returns the admitted keys, the function to call after their commit, and the errors of the keys
// whose filters have failed.
func admit(
	ctx context.Context, call func(context.Context, ...cacheaside.Key) (func(context.Context) error, error),
	keys []cacheaside.Key,
) (committed func(context.Context) error, admitted []cacheaside.Key, refused failures) {
	refused = failures{}
	admitted = slices.Clone(keys)
	for len(admitted) > 0 { // one more iteration for each loader whose filter fails
		committed, err := call(ctx, admitted...)
		if err == nil {
			return committed, admitted, refused
		}
		errs := failuresOf(admitted, err)
		maps.Copy(refused, errs)
		admitted = slices.DeleteFunc(admitted, func(k cacheaside.Key) bool { return errs[k] != nil })
	}
	return func(context.Context) error { return nil }, nil, refused
}

// failuresOf splits the error of a call for several keys by key. An error that is not a
// BatchError applies to all keys. So does a BatchError that was joined with other errors, because
// these may apply to all keys.
func failuresOf(keys []cacheaside.Key, err error) failures {
	errs := failures{}
	if err == nil {
		return errs
	}
	if batch, ok := err.(*cacheaside.BatchError[cacheaside.Key]); ok && batch != nil { //nolint:errorlint // see above
		for _, k := range keys {
			if err := batch.Errs[k]; err != nil {
				errs[k] = err
			}
		}
	}
	if len(errs) == 0 {
		return allFailed(keys, err)
	}
	return errs
}
