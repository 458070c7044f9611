package promises

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
)

// refuser is a filter that refuses all keys at no cost.
type refuser struct{ cacheaside.Filter }

func (refuser) MightContain(context.Context, string) (bool, error) { return false, nil }

func (refuser) MightContainNow(string) (may, known bool) { return false, true }

func (refuser) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	return make([]bool, len(keys)), nil
}

// BenchmarkRefusedGet measures a Get that a filter refuses at no cost, and compares it with a hit
// in memory.
func BenchmarkRefusedGet(b *testing.B) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, string) (string,
		error) {
		return "", cacheaside.ErrNotFound
	}, &cacheaside.LoaderOptions{Filter: refuser{}})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = "product:" + strconv.Itoa(i)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	get := func(i int) error {
		if _, err := l.Get(ctx, keys[i%len(keys)]); !errors.Is(err, cacheaside.ErrNotFound) {
			return err
		}
		return nil
	}
	run(b, "refused", get)
}
