package promises

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/cacheaside/cacheaside"
)

// The processes of a fleet do not load an unstorable row one after another. The first load leaves a
// marker, after which each process loads the row for its own callers.
func TestUnstorableRowsAreLoadedByEachProcess(t *testing.T) {
	const processes, took = 40, 100 * time.Millisecond
	for name, c := range map[string]struct {
		row     string
		options cacheaside.Options
		loader  *cacheaside.LoaderOptions
		counted func(cacheaside.Stats) int64
	}{
		"longer than MaxValueBytes": {strings.Repeat("x", 100), noMemory, &cacheaside.LoaderOptions{MaxValueBytes: 10}, func(s cacheaside.Stats) int64 { return s.TooLarge }},
		"of a group within ReplicaLag": {
			"red", withoutMemory(lagging), byParityAndColor(), func(s cacheaside.Stats) int64 { return s.Held },
		},
	} {
		t.Run(name, func(t *testing.T) {
			embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
				d := newTable(map[int]string{1: c.row, 2: c.row})
				var primary []bool
				var mu sync.Mutex
				d.read = func(ctx context.Context, _ int64) error {
					time.Sleep(took)
					mu.Lock()
					defer mu.Unlock()
					primary = append(primary, cacheaside.PreferPrimary(ctx))
					return nil
				}
				c.loader.LoadTimeout = time.Second
				fleet := make([]process, processes)
				for i := range fleet {
					fleet[i] = start(t, b, d, c.options, c.loader)
					defer fleet[i].cache.Close()
				}
				if c.options.ReplicaLag > 0 {
					fleet[0].invalidateGroup(t, "red")
					time.Sleep(time.Second) // the others receive it
				}
				all := func() time.Duration {
					began := time.Now()
					var reads sync.WaitGroup
					for _, p := range fleet {
						reads.Go(func() { p.want(t, 1, c.row, nil) })
					}
					reads.Wait()
					return time.Since(began)
				}
				if d := all(); d > 3*took {
					t.Errorf("the first reads take %v: they wait for more than one load", d)
				}
				if d := all(); d > took {
					t.Errorf("with the marker, reads take %v", d)
				}
				if most := d.most.Load(); most != processes {
					t.Errorf("%d concurrent loads", most)
				}
				for i, p := range fleet {
					if s := p.Stats(); c.counted(s) != 2 || s.Unvalidated != 2 {
						t.Fatalf("process %d: %+v", i, s)
					}
				}
				if c.options.ReplicaLag > 0 {
					for i, asked := range primary[1:] {
						if !asked {
							t.Errorf("load %d reads from a replica", i+1)
						}
					}
					return
				}

				// An invalidation removes the marker, so a row that fits now is stored.
				d.write(1, "fits")
				if err := fleet[1].Invalidate(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				before := d.loads.Load()
				for _, p := range fleet {
					p.want(t, 1, "fits", nil)
				}
				if n := d.loads.Load() - before; n != 1 {
					t.Errorf("%d loads of a row that can be stored", n)
				}

				// Without an invalidation, the marker expires.
				fleet[0].want(t, 2, c.row, nil)
				d.write(2, "fits")
				fleet[1].want(t, 2, "fits", nil)
				time.Sleep(20*took + time.Second)
				m.FastForward(20*took + time.Second)
				before = d.loads.Load()
				for _, p := range fleet {
					p.want(t, 2, "fits", nil)
				}
				if n := d.loads.Load() - before; n != 1 {
					t.Errorf("%d loads after the end of the marker", n)
				}
			})
		})
	}
}
