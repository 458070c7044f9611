package promises

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cacheaside/cacheaside"
)

// formatted counts how often its text is formatted.
type formatted struct{ times atomic.Int64 }

func (f *formatted) Error() string { f.times.Add(1); return "the database is down" }

// The text of an error of nested batch loads formats as many errors as there are levels, and not a
// power of the number of keys. So do the failing loads.
func TestTextOfNestedBatchErrors(t *testing.T) {
	for name, wrapped := range map[string]func(error) error{
		"unchanged": func(err error) error { return err },
		"wrapped":   func(err error) error { return fmt.Errorf("below: %w", err) },
		"joined":    func(err error) error { return errors.Join(err, err) },
	} {
		for _, otherTypes := range []bool{false, true} {
			t.Run(fmt.Sprint(name, otherTypes), func(t *testing.T) {
				for _, levels := range []int{2, 8} { // without the bound, 8 levels would take years
					if !t.Failed() {
						nestedErrors(t, levels, otherTypes, wrapped)
					}
				}
			})
		}
	}
}

func nestedErrors(t *testing.T, levels int, otherTypes bool, wrapped func(error) error) {
	const keys = 100
	ints, texts := make([]int, keys), make([]string, keys)
	for i := range keys {
		ints[i], texts[i] = i, strconv.Itoa(i)
	}
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	down := &formatted{}
	get := func(context.Context) error { return down }
	for level := range levels {
		below := get
		// A BatchError of keys of another type is an error of the whole call.
		if otherTypes && level%2 == 1 {
			get = batchOf(t, c, level, texts, func(ctx context.Context) error { return wrapped(below(ctx)) })
		} else {
			get = batchOf(t, c, level, ints, func(ctx context.Context) error { return wrapped(below(ctx)) })
		}
	}
	err = get(t.Context())
	if n := down.times.Swap(0); n > int64(10*levels*keys) {
		t.Errorf("%d levels: the calls format the error %d times", levels, n)
		return
	}
	text := err.Error()
	if n := down.times.Load(); n > 4 || len(text) > 8<<10 {
		t.Errorf("%d levels: the error is formatted %d times, its text has %d bytes", levels, n, len(text))
	}
	if text != err.Error() || !errors.Is(err, down) || !strings.Contains(text, "100 keys failed") {
		t.Errorf("%d levels: %.200s", levels, text)
	}
}

// batchOf returns a function that reads keys through its own loader.
func batchOf[K comparable](
	t *testing.T, c *cacheaside.Cache, level int, keys []K, load func(context.Context) error,
) func(context.Context) error {
	l, err := cacheaside.NewBatchLoader(c, fmt.Sprint("level", level),
		func(ctx context.Context, _ []K) (map[K]string, error) { return nil, load(ctx) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) error { _, err := l.GetMany(ctx, keys); return err }
}
