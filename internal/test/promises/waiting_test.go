package promises

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
)

// Processes that wait for the load of a cold key send few commands, however long it takes: the end
// of the load is announced to them. That is true for each way in which a load can end.
func TestEndOfALoadIsAnnounced(t *testing.T) {
	const waiting = 9
	for name, c := range map[string]struct {
		fails, invalidated bool
		took               time.Duration
		lookups            int // of each waiting process after it was counted, at most
	}{
		"a short load":      {took: 200 * time.Millisecond, lookups: 1},
		"a long load":       {took: 8 * time.Second, lookups: 16}, // polls after 0.25, 0.5 and 1 s, then each second
		"a failed load":     {took: 200 * time.Millisecond, lookups: 2, fails: true},
		"an invalidation":   {took: 200 * time.Millisecond, lookups: 5, invalidated: true},
		"no announced ends": {took: 200 * time.Millisecond, lookups: 40},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				counts := &tally{commands: map[string]int{}}
				b.admin.AddHook(counts)
				d := newTable(map[int]string{1: "a"})
				d.read = func(context.Context, int64) error {
					time.Sleep(c.took)
					if c.fails {
						return errBroken
					}
					return nil
				}
				o, lo := patient, &cacheaside.LoaderOptions{Jitter: -1, EarlyRefresh: -1}
				if name == "no announced ends" {
					o = steadyNoMemory
				}
				o.MaxStaleness = time.Minute // few polls
				p := start(t, b, d, o, lo)
				defer p.cache.Close()
				var others []process
				for range waiting {
					q := start(t, b, d, o, lo)
					defer q.cache.Close()
					others = append(others, q)
				}
				get := func(p process, got *atomic.Int64) {
					if v, err := p.Get(t.Context(), 1); v == "a" && err == nil {
						got.Add(1)
					}
				}
				var got atomic.Int64
				var all sync.WaitGroup
				all.Go(func() { get(p, &got) })
				time.Sleep(c.took / 100)
				for _, q := range others {
					all.Go(func() { get(q, &got) })
				}
				time.Sleep(c.took / 100)
				counts.take()
				began := time.Now()
				if c.invalidated {
					if err := p.Invalidate(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
				}
				all.Wait()
				took := time.Since(began)
				_, n := counts.take()
				if want := int64(waiting + 1); !c.fails && got.Load() != want {
					t.Errorf("%d reads have succeeded, expected %d", got.Load(), want)
				}
				if n["getrange"] > waiting*c.lookups+2 { // 2: some were not counted yet
					t.Errorf("%d lookups by %d processes, expected at most %d each", n["getrange"], waiting, c.lookups)
				}
				if late := took - c.took; late > 10*time.Millisecond && !c.invalidated && name != "no announced ends" {
					t.Errorf("the last read has ended %v after the load", late)
				}
				t.Logf("%d processes waited for a load of %v: %v", waiting, c.took, n)
			})
		})
	}
}
