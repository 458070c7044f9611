package promises

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A Redis that was restored from a snapshot serves entries that were deleted since. No promise
// excludes that. InvalidateAll repairs it, from any process, even one without loaders.
func TestRestoredSnapshot(t *testing.T) {
	server := testenv.StartRedis(t)
	d := newTable(map[int]string{1: "old"})
	o := cacheaside.Options{RedisTimeout: patient.RedisTimeout, ReadTimeout: patient.ReadTimeout, MemoryBytes: -1,
		MaxStaleness: 2 * time.Second}
	for _, repair := range []func(*cacheaside.Cache, *cacheaside.Loader[int, string]) error{
		func(_ *cacheaside.Cache, l *cacheaside.Loader[int, string]) error {
			return l.InvalidateAll(t.Context())
		},
		func(*cacheaside.Cache, *cacheaside.Loader[int, string]) error {
			writer, err := cacheaside.New(server.Client(t), &o)
			if err != nil {
				return err
			}
			defer writer.Close()
			return writer.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "row", All: true})
		},
	} {
		p := startOn(t, server.Client(t), d, o, nil)
		d.write(1, "old")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "old", nil)
		if err := server.Client(t).Save(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "new", nil)
		server.Kill()
		server.Restart(t)
		testenv.Eventually(t, "the server that was restored", func() bool { return reached(p.cache) })
		q := startOn(t, server.Client(t), d, o, nil)
		q.want(t, 1, "old", nil) // the fault
		testenv.Eventually(t, "the repair", func() bool { return repair(q.cache, q.Loader) == nil })
		// Within MaxStaleness.
		testenv.Eventually(t, "a read returns the new row", func() bool {
			v, _ := p.Get(t.Context(), 1)
			return v == "new"
		})
		q.want(t, 1, "new", nil)
		q.cache.Close()
		p.cache.Close()
	}
}
