package lease

import (
	"context"
	"time"
)

// Single is one attempt at a time, as the tests of the scripts need it.

func (s *Store) Attempt(key string, life time.Duration) single {
	a := NewAttempt(key, life)
	return single{&a, s}
}

type single struct {
	*Attempt
	store *Store
}

func (a single) all() []*Attempt { return []*Attempt{a.Attempt} }

func (a single) Read(ctx context.Context) (State, error) {
	a.store.Read(ctx, new(Sizes), []string{a.key}, func(_ int, held *State, err error) {
		if err == nil && held.Long && held.Kind == Stored {
			*held, err = a.store.Fetch(ctx, a.key, held.Raw, 1<<30)
		}
		a.Adopt(held)
		a.State, a.Err = *held, err
	})
	return a.outcome()
}

// outcome is the state that the last step has shown, or its error.
func (a single) outcome() (State, error) {
	if a.Err != nil {
		return State{}, a.Err
	}
	return a.State, nil
}

func (a single) Take(ctx context.Context, unreadable []byte) (State, error) {
	a.State = State{Kind: Absent}
	if unreadable != nil {
		a.State = State{Kind: Unknown, Raw: unreadable}
	}
	a.store.Take(ctx, a.all())
	return a.outcome()
}

func (a single) Claim(ctx context.Context) (State, error) {
	a.store.Claim(ctx, a.all())
	return a.outcome()
}

func (a single) Fill(ctx context.Context, e Entry, life time.Duration) (bool, error) {
	f := &Filling{Attempt: a.Attempt, Entry: e, Life: life}
	a.store.Fill(ctx, []*Filling{f})
	return f.Stored, a.Err
}

func (a single) Fail(ctx context.Context, errorTTL time.Duration) error {
	a.store.Fail(ctx, a.all(), errorTTL)
	return a.Err
}

func (a single) Release(ctx context.Context) error {
	a.Err = nil
	a.store.Release(ctx, a.all())
	return a.Err
}

type renewal struct {
	a     *Attempt
	store *Store
}

func (a single) Renewal() renewal { return renewal{a.Attempt.Renewal(), a.store} }

func (r renewal) Renew(ctx context.Context) (bool, error) {
	held, err := r.store.Renew(ctx, []*Attempt{r.a})
	return len(held) == 1 && err == nil, err
}
