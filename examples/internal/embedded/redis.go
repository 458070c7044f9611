// Package embedded has the Redis of examples that need none installed.
package embedded

import (
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Redis is a server in this process. Time stands still there until StartClock.
type Redis struct {
	*miniredis.Miniredis

	clock sync.WaitGroup
	stop  chan struct{}
}

// Start starts one, on a free port of 127.0.0.1.
func Start() (*Redis, error) {
	mini, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("the embedded Redis: %w", err)
	}
	return &Redis{Miniredis: mini, stop: make(chan struct{})}, nil
}

// StartClock removes expired keys once per interval. The server's own ClockTTL(true) would visit
// all keys at each command, which is slow if there are many.
func (r *Redis) StartClock(every time.Duration) {
	last := time.Now()
	r.clock.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				r.FastForward(now.Sub(last))
				last = now
			case <-r.stop:
				return
			}
		}
	})
}

// Close ends the clock, and the server.
func (r *Redis) Close() {
	close(r.stop)
	r.clock.Wait()
	r.Miniredis.Close()
}
