package mysqllock

import (
	"context"
	"sync"
)

// background is what runs when no call does.
type background struct {
	ctx    context.Context // ends with close
	stop   context.CancelFunc
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup
}

func (b *background) init() { b.ctx, b.stop = context.WithCancel(context.Background()) }

// run runs f on a goroutine that close waits for. It answers false, and does not run it, after
// close.
func (b *background) run(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.all.Go(f)
	}
	return !b.closed
}

func (b *background) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.all.Wait()
}
