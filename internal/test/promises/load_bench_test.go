package promises

import (
	"context"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// BenchmarkLoad measures the library's share of a load: the load function takes no time.
func BenchmarkLoad(b *testing.B) {
	load := func(context.Context, int) (int, error) { return 1, nil }
	for _, name := range []string{"without Redis", "redis"} {
		c, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: -1})
		if name == "redis" {
			c, err = cacheaside.New(testenv.SharedRedis(b).Client(b), &cacheaside.Options{MemoryBytes: -1})
		}
		if err != nil {
			b.Fatal(err)
		}
		l, err := cacheaside.NewLoader(c, "row", load, nil)
		if err != nil {
			b.Fatal(err)
		}
		run(b, name, func(i int) error {
			_, err := l.Get(context.Background(), i)
			return err
		})
		c.Close()
	}
}
