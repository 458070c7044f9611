package sourcetest

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// AtLeastHalf fails unless the median of ratios is at least 0.5. A single ratio is only logged: a
// short run measures nothing.
func (w *World) AtLeastHalf(figure string, ratios []float64) {
	w.Helper()
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	w.Logf("%s: %.2f (median)", figure, median)
	if median < 0.5 && len(ratios) > 1 {
		w.Error("less than half")
	}
}

// GiantTransaction executes statements and waits until c has consumed all changes. The first
// statement is a transaction of many rows. GiantTransaction fails if the heap in use grows by more
// than 64 MB.
func (w *World) GiantTransaction(c *canal.Consumer, changes int, statements ...string) {
	w.Helper()
	runtime.GC()
	var idle runtime.MemStats
	runtime.ReadMemStats(&idle)
	var most atomic.Uint64
	ctx, stop := context.WithCancel(w.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			time.Sleep(5 * time.Millisecond)
		}
	}()
	began := time.Now()
	w.Do(statements...)
	wrote := time.Now()
	testenv.Eventually(w, "all is consumed", func() bool { return c.Stats().Changes >= int64(changes) })
	stop()
	<-watched
	above := (int64(most.Load()) - int64(idle.HeapInuse)) >> 20
	w.Logf("%d changes took %v, and were consumed %v later; at most %d MB more of heap in use", changes,
		wrote.Sub(began).Round(time.Millisecond), time.Since(wrote).Round(time.Millisecond), above)
	if above > 64 {
		w.Error("more than 64 MB")
	}
}
