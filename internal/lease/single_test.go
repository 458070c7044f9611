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

func (s single) all() []*Attempt { return []*Attempt{s.Attempt} }

func (s single) Read(ctx context.Context) (State, error) {
	s.store.Read(ctx, new(Sizes), []string{s.key}, func(_ int, held *State, err error) {
		if err == nil && held.Long && held.Kind == Stored {
			*held, err = s.store.Fetch(ctx, s.key, held.Raw, 1<<30)
		}
		s.Adopt(held)
		s.State, s.Err = *held, err
	})
	return s.outcome()
}

// outcome is the state that the last step has shown, or its error.
func (s single) outcome() (State, error) {
	if s.Err != nil {
		return State{}, s.Err
	}
	return s.State, nil
}

func (s single) Take(ctx context.Context, unreadable []byte) (State, error) {
	s.State = State{Kind: Absent}
	if unreadable != nil {
		s.State = State{Kind: Unknown, Raw: unreadable}
	}
	s.store.Take(ctx, s.all())
	return s.outcome()
}

func (s single) Claim(ctx context.Context) (State, error) {
	s.store.Claim(ctx, s.all())
	return s.outcome()
}

func (s single) Fill(ctx context.Context, e Entry, life time.Duration) (bool, error) {
	f := &Filling{Attempt: s.Attempt, Entry: e, Life: life}
	s.store.Fill(ctx, []*Filling{f})
	return f.Stored, s.Err
}

func (s single) Fail(ctx context.Context, errorTTL time.Duration) error {
	s.store.Fail(ctx, s.all(), errorTTL)
	return s.Err
}

func (s single) EndUnstorable(ctx context.Context, reason Reason, life time.Duration) error {
	s.store.EndUnstorable(ctx, s.all(), reason, life)
	return s.Err
}

func (s single) Release(ctx context.Context) error {
	s.Err = nil
	s.store.Release(ctx, s.all())
	return s.Err
}

type renewal struct {
	a     *Attempt
	store *Store
}

func (s single) Renewal() renewal {
	a := s.Attempt.Renewal()
	return renewal{&a, s.store}
}

func (r renewal) Renew(ctx context.Context) (bool, error) {
	held, err := r.store.Renew(ctx, []*Attempt{r.a})
	return len(held) == 1 && err == nil, err
}
