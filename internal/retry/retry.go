// Package retry has the pauses between tries.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep returns nil after d, or the cause of ctx's end when that has come.
func Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// Delay is how long to wait after something has failed n times in a row: it doubles, from first up
// to most, and half of it is by chance, so that what has failed together does not come back
// together. ("Equal jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
// 2015.)
func Delay(n int, first, most time.Duration) time.Duration {
	d := min(first, most)
	for ; n > 1 && d < most; n-- {
		d = min(2*d, most)
	}
	return d/2 + rand.N(d/2+1)
}
