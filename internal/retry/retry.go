// Package retry provides delays between attempts.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep returns nil after d. If ctx ends first, Sleep returns its cause.
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

// Delay returns how long to wait after n consecutive failures. The delay doubles from first up to
// most, and half of it is random, so that clients that failed together do not return together.
// ("Equal jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.)
func Delay(n int, first, most time.Duration) time.Duration {
	d := min(first, most)
	for ; n > 1 && d < most; n-- {
		d = min(2*d, most)
	}
	return d/2 + rand.N(d/2+1)
}
