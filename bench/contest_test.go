package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// contender is one of several implementations of the same work, which run in turns.
type contender struct {
	name string
	op   func(i int) error // the i-th operation of a goroutine
}

// result is the time of one contender in each run.
type result struct {
	name   string
	ns     []float64 // for one operation, of all goroutines together
	allocs float64   // for one operation, in the whole process, in the last run
}

// contest runs the operation of each contender on the given number of goroutines for about the time
// each, in turns. The contender that begins changes from run to run, so that the order favours none
// of them.
func contest(t *testing.T, runs, goroutines int, each time.Duration, contenders []contender) []result {
	t.Helper()
	results := make([]result, len(contenders))
	counts := make([]int, len(contenders))
	for i, c := range contenders {
		results[i].name = c.name
		counts[i] = calibrate(t, c, goroutines, each)
	}
	for run := range runs {
		for j := range contenders {
			i := (run + j) % len(contenders)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			took := operate(t, contenders[i], goroutines, counts[i])
			runtime.ReadMemStats(&after)
			n := float64(counts[i] * goroutines)
			results[i].ns = append(results[i].ns, float64(took.Nanoseconds())/n)
			results[i].allocs = float64(after.Mallocs-before.Mallocs) / n
		}
	}
	return results
}

// calibrate returns the number of operations per goroutine that take about the time each.
func calibrate(t *testing.T, c contender, goroutines int, each time.Duration) int {
	t.Helper()
	for n := 16; ; n *= 4 {
		took := operate(t, c, goroutines, n)
		if took >= each/8 || n > 1<<28 {
			return max(1, int(float64(n)*float64(each)/float64(max(took, 1))))
		}
	}
}

// operate runs n operations on each goroutine and returns the total time.
func operate(t *testing.T, c contender, goroutines, n int) time.Duration {
	t.Helper()
	var failed atomic.Pointer[error]
	one := func(g int) {
		for i := g * 7919; i < g*7919+n; i++ {
			if err := c.op(i); err != nil {
				first := err // otherwise err would escape to the heap in each iteration
				failed.CompareAndSwap(nil, &first)
				return
			}
		}
	}
	began := time.Now()
	if goroutines == 1 {
		one(0)
	} else {
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() { one(g) })
		}
		wg.Wait()
	}
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		t.Fatalf("%s: %v", c.name, *err)
	}
	return took
}

// find returns the result with the name.
func find(results []result, name string) *result {
	for i := range results {
		if results[i].name == name {
			return &results[i]
		}
	}
	return nil
}
