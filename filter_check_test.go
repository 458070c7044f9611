package cacheaside

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// checkedFilter contains all keys and keeps the check that it receives.
type checkedFilter struct {
	Filter
	check filterCheck
}

type filterCheck = func(ctx context.Context, listed []string, before time.Time, holds func(context.Context, []string) ([]bool, error)) (int, error)

func (c *checkedFilter) CheckRebuilt(check filterCheck) func() {
	c.check = check
	return func() {}
}

func (c *checkedFilter) MightContain(context.Context, string) (bool, error) { return true, nil }

// TestFilterCheckReportsErrors: if a check cannot decide, it returns an error and reports no row.
func TestFilterCheckReportsErrors(t *testing.T) {
	f, down := &checkedFilter{}, errors.New("the database is down")
	c, err := NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var fail error
	l, err := NewLoader(c, "user", func(context.Context, int) (string, error) { return "row", fail }, &LoaderOptions{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	lacks := func(_ context.Context, keys []string) ([]bool, error) { return make([]bool, len(keys)), nil }
	if hidden, err := f.check(t.Context(), nil, time.Time{}, lacks); hidden != 0 || err != nil {
		t.Errorf("before any load: %d, %v", hidden, err)
	}
	if _, err := l.Get(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for name, holds := range map[string]func(context.Context, []string) ([]bool, error){
		"an error":  func(context.Context, []string) ([]bool, error) { return nil, down },
		"no answer": func(context.Context, []string) ([]bool, error) { return nil, nil },
	} {
		if hidden, err := f.check(t.Context(), nil, time.Time{}, holds); hidden != 0 || err == nil {
			t.Errorf("%s: %d, %v", name, hidden, err)
		}
	}
	if hidden, err := f.check(t.Context(), nil, time.Time{}, lacks); hidden != 1 || err == nil {
		t.Errorf("an existing row: %d, %v", hidden, err)
	}
	fail = down
	if hidden, err := f.check(t.Context(), nil, time.Time{}, lacks); hidden != 0 || !errors.Is(err, down) {
		t.Errorf("the row cannot be loaded: %d, %v", hidden, err)
	}
	fail = ErrNotFound
	if hidden, err := f.check(t.Context(), nil, time.Time{}, lacks); hidden != 0 || err != nil {
		t.Errorf("a deleted row: %d, %v", hidden, err)
	}
	if hidden, err := f.check(t.Context(), nil, time.Time{}, lacks); hidden != 0 || err != nil {
		t.Errorf("a forgotten row: %d, %v", hidden, err)
	}
	c.Close()
}

// TestFilterCheckReportsForeignTexts: if the texts of the source are not keys of the loader, each
// row that the filter lacks is reported.
func TestFilterCheckReportsForeignTexts(t *testing.T) {
	for name, c := range map[string]struct {
		listed []string
		hidden int
	}{
		"keys":           {[]string{"ada", "bob"}, 0},
		"foreign texts":  {[]string{"Ada", "Bob"}, 1},
		"nothing listed": {nil, 0},
	} {
		f := &checkedFilter{}
		users, err := NewLocal(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer users.Close()
		row := func(_ context.Context, name string) (string, error) { return "row of " + name, nil }
		l, err := NewLoader(users, "user", row, &LoaderOptions{Filter: f, Normalize: NormalizeOf(strings.ToLower)})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b", "c", "d"} {
			if _, err := l.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		lacksOne := func(_ context.Context, keys []string) ([]bool, error) {
			has := make([]bool, len(keys))
			for i := range has[1:] {
				has[i] = true
			}
			return has, nil
		}
		if hidden, err := f.check(t.Context(), c.listed, time.Time{}, lacksOne); hidden != c.hidden || (err != nil) != (hidden > 0) {
			t.Errorf("%s: %d, %v", name, hidden, err)
		}
	}
}
