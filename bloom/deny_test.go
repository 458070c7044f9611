package bloom

import (
	"context"
	"errors"
	"testing"
)

// answering is a filter that returns the same result for each key.
type answering struct {
	*Local
	maybe bool
	err   error
}

func (a answering) MightContain(context.Context, string) (bool, error) { return a.maybe, a.err }

func TestDenyList(t *testing.T) {
	down, broken := errors.New("down"), errors.New("broken")
	listed := func(denied bool, err error) func(context.Context, string) (bool, error) {
		return func(context.Context, string) (bool, error) { return denied, err }
	}
	for what, c := range map[string]struct {
		filter answering
		check  func(context.Context, string) (bool, error)
		denied bool
		err    error
		not    int64 // counted as a false positive
	}{
		"certainly not":                    {answering{}, listed(true, broken), false, nil, 0},
		"on the list":                      {answering{maybe: true}, listed(true, nil), true, nil, 0},
		"a false positive":                 {answering{maybe: true}, listed(false, nil), false, nil, 1},
		"the list fails":                   {answering{maybe: true}, listed(false, broken), true, broken, 0},
		"maybe, without a list":            {answering{maybe: true}, nil, true, nil, 0},
		"certainly not, without a list":    {answering{}, nil, false, nil, 0},
		"the filter fails":                 {answering{maybe: true, err: down}, listed(false, nil), false, nil, 0},
		"the filter fails, and has no":     {answering{err: down}, listed(true, nil), true, nil, 0},
		"the filter fails, without a list": {answering{maybe: true, err: down}, nil, true, down, 0},
		"both fail":                        {answering{maybe: true, err: down}, listed(false, broken), true, broken, 0},
	} {
		c.filter.Local = newLocal(t, 1, 0.1)
		denied, err := NewDenyList(c.filter, c.check).Denied(t.Context(), "key")
		if denied != c.denied || err != c.err || c.filter.Stats().FalsePositives != c.not {
			t.Errorf("%s: %v, %v", what, denied, err)
		}
	}
}
