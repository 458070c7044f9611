package consistency

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
)

// invalidator is the part of a Cache that a Relay and a Writer use.
type invalidator interface {
	InsertingKeys(ctx context.Context, keys ...cacheaside.Key) (committed func(context.Context) error, err error)
	InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error
	RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error
}

// errSlow is of a filter that has taken half of the time that there is.
var errSlow = errors.New("the filter did not answer in time")

// keyErrors has the errors of the keys for which a call has failed.
type keyErrors map[cacheaside.Key]error

// join adds more errors.
func (e keyErrors) join(more keyErrors) {
	for k, err := range more {
		e[k] = errors.Join(e[k], err)
	}
}

// of returns those of keys that have an error, in their order.
func (e keyErrors) of(keys []cacheaside.Key) (failed []cacheaside.Key) {
	for _, k := range keys {
		if e[k] != nil {
			failed = append(failed, k)
		}
	}
	return failed
}

// err returns all of them as one error, or nil if there are none.
func (e keyErrors) err() error {
	if len(e) == 0 {
		return nil
	}
	return &cacheaside.BatchError[cacheaside.Key]{Errs: e}
}

// each gives all of keys the same error.
func each(keys []cacheaside.Key, err error) keyErrors {
	errs := make(keyErrors, len(keys))
	for _, k := range keys {
		errs[k] = err
	}
	return errs
}

// invalidate tells filters and caches of keys that have changed. It returns which keys are not
// invalidated, or not in their filters, and why. A filter that fails, or hangs as long as its
// context lets it, is no reason to leave the keys stale.
func invalidate(ctx context.Context, cache invalidator, keys []cacheaside.Key) (left keyErrors) {
	first, cancel := half(ctx)
	defer cancel()
	committed, admitted, left := admit(first, cache.InsertingKeys, keys)
	again := slices.Collect(maps.Keys(left))
	maps.Copy(left, leftOf(admitted, committed(first)))
	if first.Err() != nil && ctx.Err() == nil { // what came after the filter had no time
		again = slices.Collect(maps.Keys(left))
		left = each(again, errSlow)
	}
	if len(again) > 0 {
		left.join(leftOf(again, cache.InvalidateKeys(ctx, again...)))
	}
	return left
}

// half is a context with half of the time that ctx has.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, time.Now().Add(time.Until(deadline)/2))
}

// admit tells filters of the keys, by InsertingKeys or AdmitHeld. Keys that are refused are of
// loaders whose filters have failed; committed is for the others.
func admit(ctx context.Context, call func(context.Context, ...cacheaside.Key) (func(context.Context) error, error), keys []cacheaside.Key) (committed func(context.Context) error, admitted []cacheaside.Key, refused keyErrors) {
	refused = keyErrors{}
	admitted = slices.Clone(keys)
	for len(admitted) > 0 { // once more for each loader whose filter fails
		committed, err := call(ctx, admitted...)
		if err == nil {
			return committed, admitted, refused
		}
		left := leftOf(admitted, err)
		maps.Copy(refused, left)
		admitted = slices.DeleteFunc(admitted, func(k cacheaside.Key) bool { return left[k] != nil })
	}
	return func(context.Context) error { return nil }, nil, refused
}

// leftOf tells which of keys are not done, by the error of a call for all of them. An error that
// does not say which is of all; so is an error that was joined with others, for these may be of
// all.
func leftOf(keys []cacheaside.Key, err error) keyErrors {
	left := keyErrors{}
	if err == nil {
		return left
	}
	if each, ok := err.(*cacheaside.BatchError[cacheaside.Key]); ok && each != nil { //nolint:errorlint // see above
		for _, k := range keys {
			if err := each.Errs[k]; err != nil {
				left[k] = err
			}
		}
	}
	if len(left) == 0 {
		return each(keys, err)
	}
	return left
}
