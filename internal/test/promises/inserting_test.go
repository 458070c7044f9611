package promises

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
)

// The errors of Inserting and committed name the keys that failed. Both calls can be repeated.
func TestInsertingErrorsNameKeys(t *testing.T) {
	broken := errors.New("broken")
	d, s := newTable(map[int]string{}), newSieve("1")
	p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: s})
	failed := func(err error, keys ...int) {
		t.Helper()
		batch, ok := err.(*cacheaside.BatchError[int])
		if !ok || len(batch.Errs) != len(keys) {
			t.Fatalf("%#v", err)
		}
		for _, key := range keys {
			e, ok := batch.Errs[key].(*cacheaside.Error)
			if !ok || e.Op != "inserting" || !errors.Is(e, broken) || e.Key != strconv.Itoa(key) ||
				strings.Contains(e.Error(), "key 1") {
				t.Errorf("%#v", e)
			}
		}
	}
	s.admitErr = broken
	committed, err := p.Inserting(t.Context(), 1, 2)
	if failed(err, 1, 2); committed != nil {
		t.Error("Inserting returns a function after an error")
	}
	s.admitErr, s.commitErr = nil, broken
	keys := []int{1, 2}
	committed, err = p.Inserting(t.Context(), keys...)
	if err != nil {
		t.Fatal(err)
	}
	keys[0] = 7 // the slice belongs to the caller
	p.want(t, 1, "", cacheaside.ErrNotFound)
	p.settle()
	d.write(1, "one")
	p.want(t, 1, "", cacheaside.ErrNotFound) // cached
	failed(committed(t.Context()), 1, 2)
	p.want(t, 1, "one", nil) // it was invalidated anyway
	s.commitErr = nil
	if err := committed(t.Context()); err != nil {
		t.Error(err)
	}
	if st := p.Stats(); st.FilterErrors != 2 || st.Invalidated != 4 || s.committed != 2 {
		t.Errorf("%+v, %d", st, s.committed)
	}
	if committed, err = p.Inserting(t.Context()); err != nil || committed(t.Context()) != nil {
		t.Error("no keys:", err)
	}
	p.cache.Close()
	if err := committed(t.Context()); err != nil {
		t.Error("no keys, closed:", err)
	}
	if committed, err = p.Inserting(t.Context()); err != nil || committed(t.Context()) != nil {
		t.Error("no keys, after Close:", err)
	}
	if _, err := p.Inserting(t.Context(), 1); !errors.Is(err, cacheaside.ErrClosed) {
		t.Error(err)
	}
}

// committed removes the filter's state that could hide the rows, before it returns.
func TestCommittedNotifiesFilter(t *testing.T) {
	d, s := newTable(map[int]string{}), newSieve()
	p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: s})
	insert(t, p, d, 1)
	if s.committed != 1 {
		t.Errorf("the filter's committed was called %d times, want 1", s.committed)
	}
}

type badKey int

func (b badKey) MarshalText() ([]byte, error) {
	if b < 0 {
		return nil, errors.New("no text")
	}
	return []byte{byte('a' + b)}, nil
}

// If a key has no text, none is admitted.
func TestAdmitOfKeyWithoutText(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := newSieve()
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, badKey) (string,
		error) {
		return "", cacheaside.ErrNotFound
	}, &cacheaside.LoaderOptions{Filter: s})
	if err != nil {
		t.Fatal(err)
	}
	if committed, err := l.Inserting(t.Context(), 1, -1); committed != nil || err == nil ||
		!strings.Contains(err.Error(), "no text") || len(s.keys) != 0 {
		t.Error(err, s.keys)
	}
	if _, err := l.Get(t.Context(), -1); err == nil || !strings.Contains(err.Error(), "no text") {
		t.Error(err)
	}
	if found, err := l.GetMany(t.Context(), []badKey{1, -1}); len(found) != 0 || err == nil ||
		!strings.Contains(err.Error(), "no text") {
		t.Error(found, err)
	}
	if st := l.Stats(); st.Filtered != 1 || st.FilterErrors != 0 {
		t.Errorf("%+v", st)
	}
}

// Without a filter Inserting adds nothing, and rows that were cached as absent are still found.
func TestAdmitWithoutFilter(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{})
	p := start(t, b, d, patient, nil)
	p.want(t, 1, "", cacheaside.ErrNotFound)
	p.settle()
	insert(t, p, d, 1)
	p.want(t, 1, "row 1", nil)
}

// An unreachable filter stops inserts, but not updates of existing rows.
func TestExistingNeedsNoFilter(t *testing.T) {
	d, s := newTable(map[int]string{1: "one"}), newSieve("1")
	p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: s})
	s.admitErr = errors.New("broken")
	p.want(t, 1, "one", nil)
	committed, err := p.cache.InsertingKeys(t.Context(), p.Key(1).Existing())
	if err != nil {
		t.Fatal(err)
	}
	d.write(1, "other")
	if err := committed(t.Context()); err != nil || s.committed != 0 {
		t.Error(err, s.committed)
	}
	p.want(t, 1, "other", nil)
	if _, err := p.cache.InsertingKeys(t.Context(), p.Key(1).Existing(), p.Key(2)); !errors.Is(err, s.admitErr) {
		t.Error(err)
	}
}
