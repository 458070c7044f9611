package consistency

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cacheaside/cacheaside"
)

// invalidate has filters and caches know of keys that have changed. It returns which keys are not
// invalidated, or not in their filters, and why.
func invalidate(ctx context.Context, cache invalidator, keys []cacheaside.Key) map[cacheaside.Key]error {
	committed, admitted, refused := admit(ctx, cache.AdmitKeys, keys)
	left := leftOf(admitted, committed(ctx))
	if len(refused) == 0 {
		return left
	}
	without := slices.Collect(maps.Keys(refused)) // a filter that fails is no reason to leave them stale
	joined := leftOf(without, cache.InvalidateKeys(ctx, without...))
	for k, err := range refused {
		left[k] = errors.Join(err, joined[k])
	}
	return left
}

// admit has filters know the keys, by AdmitKeys or AdmitHeld. Those that are refused are of loaders
// whose filters have failed; committed is for the others.
func admit(ctx context.Context, call func(context.Context, ...cacheaside.Key) (func(context.Context) error, error), keys []cacheaside.Key) (committed func(context.Context) error, admitted []cacheaside.Key, refused map[cacheaside.Key]error) {
	refused = map[cacheaside.Key]error{}
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

// leftOf tells which of keys are not done, by the error of a call for all of them. An error that does not say so is of all; so is one that was joined with others, for those may be.
func leftOf(keys []cacheaside.Key, err error) map[cacheaside.Key]error {
	left := map[cacheaside.Key]error{}
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
		for _, k := range keys {
			left[k] = err
		}
	}
	return left
}

// each gives all of keys the same error.
func each(keys []cacheaside.Key, err error) map[cacheaside.Key]error {
	errs := make(map[cacheaside.Key]error, len(keys))
	for _, k := range keys {
		errs[k] = err
	}
	return errs
}

// keysIn returns those of keys that have an error, in their order.
func keysIn(keys []cacheaside.Key, errs map[cacheaside.Key]error) (in []cacheaside.Key) {
	for _, k := range keys {
		if errs[k] != nil {
			in = append(in, k)
		}
	}
	return in
}

// batchError is nil if there are none.
func batchError(errs map[cacheaside.Key]error) error {
	if len(errs) == 0 {
		return nil
	}
	return &cacheaside.BatchError[cacheaside.Key]{Errs: errs}
}
