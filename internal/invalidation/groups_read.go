package invalidation

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
)

// groupReads shares the reads of a loader's groups in one range among callers. At most one read is
// in progress. A caller joins the next one, which begins after the call, so its reply contains
// everything that was acknowledged before the call.
type groupReads struct {
	mu      sync.Mutex
	running bool
	next    *groupRead // the read that callers join; nil: the next caller makes it
}

// groupRead is one read. err may be read when done is closed.
type groupRead struct {
	done chan struct{}
	err  error
}

// ReadGroups reads the invalidations of a loader's groups in one range that this process does not
// know yet. The process must have the loader.
func (b *Bus) ReadGroups(ctx context.Context, rng int, loader string) error {
	return b.StartReadGroups(ctx, rng, loader)()
}

// StartReadGroups starts ReadGroups. wait returns its result. It ends with ctx, and after a
// command's time-out since the start. Neither ends the read, because other callers may wait for it.
func (b *Bus) StartReadGroups(ctx context.Context, rng int, loader string) (wait func() error) {
	deadline := time.Now().Add(b.conn.Timeout())
	read := b.joinRead(rng, loader)
	return func() error {
		select {
		case <-read.done:
			return read.err
		default:
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		select {
		case <-read.done:
			return read.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// joinRead returns the next read of a loader's groups in a range, and starts it if none is in
// progress.
func (b *Bus) joinRead(rng int, loader string) *groupRead {
	log, reads := b.loaders.reads(loader, rng)
	reads.mu.Lock()
	defer reads.mu.Unlock()
	read := reads.next
	if read == nil {
		read = &groupRead{done: make(chan struct{}), err: conn.NotReturned(nil)}
		reads.next = read
	}
	if !reads.running {
		b.startNext(reads, rng, loader, log)
	}
	return read
}

// startNext starts the next read. When it ends, it starts the one after it, if a caller waits for
// that. The caller holds reads.mu.
func (b *Bus) startNext(reads *groupReads, rng int, loader string, log *groups.Loader) {
	read := reads.next
	reads.next = nil // first: from now on, callers need a later read
	reads.running = b.conn.Apart(func() {
		defer func() { // also if a hook of the client ends the goroutine
			close(read.done)
			reads.mu.Lock()
			defer reads.mu.Unlock()
			if reads.running = false; reads.next != nil {
				b.startNext(reads, rng, loader, log)
			}
		}()
		read.err = b.readGroups(rng, loader, log)
	})
	if !reads.running {
		read.err = conn.ErrClosed
		close(read.done)
	}
}

// readGroups sends a read, and applies the reply. Only the time-out ends it.
func (b *Bus) readGroups(rng int, loader string, log *groups.Loader) error {
	ctx, cancel := conn.WithTimeout(context.Background(), b.conn.Timeout())
	defer cancel()
	var news *groupNews
	if err := b.conn.Finish(ctx, func(ctx context.Context) {
		read := b.readGroupsCommand(ctx, rng, loader, log)
		b.conn.Process(ctx, []redis.Cmder{read.cmd})
		news = read
	}); err != nil {
		return err // news may still be in use
	}
	if news == nil {
		return conn.NotReturned(nil)
	}
	return b.applyGroups(ctx, rng, 0, loader, log, news)
}
