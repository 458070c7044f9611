package flight

import "context"

// simple is a group of one key at a time, whose runs return what they have got.
type simple[K comparable, R any] struct{ *Group[K, R] }

func newSimple[K comparable, R any](
	run func(context.Context, K) (R, error), late func(R) bool, caught func(any) error,
) simple[K, R] {
	return simple[K, R]{New(Hooks[K, R]{
		Run: func(ctx context.Context, f *Flight[K, R]) {
			for _, r := range f.Rounds {
				r.Result, r.Err = run(ctx, r.Key)
				f.Complete([]*Round[K, R]{r})
			}
		},
		StillValid: func(r *R) bool { return late(*r) },
		Caught:     caught,
	})}
}

func (s simple[K, R]) Do(ctx context.Context, key K) (R, error) {
	r, err := do(s.Group, ctx, key)
	if r == nil {
		var zero R
		return zero, err
	}
	return *r, err
}

// oneByOne makes a First of a look at one round.
func oneByOne[K comparable, R any](
	look func(context.Context, *Round[K, R]) bool,
) func(context.Context, []*Round[K, R]) (over, rest []*Round[K, R]) {
	if look == nil {
		return nil
	}
	return func(ctx context.Context, rounds []*Round[K, R]) (over, rest []*Round[K, R]) {
		for _, r := range rounds {
			if look(ctx, r) {
				over = append(over, r)
			} else {
				rest = append(rest, r)
			}
		}
		return over, rest
	}
}
