package queuetest_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
)

// ExampleRun tests the queue in memory. TestQueue is a test of yours. It needs a *testing.T, so
// that this is compiled, but not run.
func ExampleRun() {
	TestQueue := func(t *testing.T) {
		queuetest.Run(t, queuetest.Backend{
			New: func(t testing.TB, n int) []consistency.Queue {
				q := consistency.NewMemoryQueue(0) // or a queue of yours, opened n times
				var all []consistency.Queue
				for range n {
					all = append(all, q)
				}
				return all
			},
		})
	}
	_ = TestQueue
}
