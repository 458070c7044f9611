package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/lock/driver"
)

const (
	maxHolders    = 1000 // of one ReadWrite or Semaphore
	maxSharedName = 1000 // bytes
)

// ReadWrite acquires read-write locks: many readers at a time, or one writer. The locks are
// independent of those of the Locker with the same names. A ReadWrite is safe for concurrent use.
// It needs no Close; close its Locker.
//
// Each reader and each writer has a lease of its own, which it extends, and whose context ends when
// the lease is lost. Readers of a process do not share a lease. At most 1,000 readers hold a lock
// at the same time; others wait. While a writer waits, no reader is added, so readers cannot starve
// it: it gets the lock when the present readers have released it. If it dies while it waits,
// readers are added again after its TTL. A steady stream of writers can starve readers.
//
// A ReadWrite is not re-entrant, and WithOwner has no effect. A reader that acquires the lock again
// may wait forever, for a writer that waits for the reader. A read lock cannot become a write lock.
//
// A name has 1 to 1000 bytes. In Redis a lock is a hash, prefix{name}:rw, and the user also needs
// +hgetall +hset +hdel +pexpire +pttl. In tables it is a row, and all changes of a lock are changes
// of that row: two statements each. So it is slower than Redis with many readers.
type ReadWrite struct{ l *Locker }

// NewReadWrite returns the read-write locks of a Locker. The error is errors.ErrUnsupported unless
// the Locker is one of NewRedis, NewLocal, mysqllock or pglock.
func NewReadWrite(l *Locker) (*ReadWrite, error) {
	if l == nil {
		return nil, errors.New("lock: the Locker is nil")
	}
	_, err := l.extended()
	return &ReadWrite{l}, err
}

// AcquireRead acquires the lock for reading, like Locker.Acquire. The token is greater than those
// of all earlier writers: a reader that shows it to a resource (GetFenced, Guard.Check) excludes
// them from then on. The tokens of readers differ, so a resource then rejects the earlier of two
// readers, too. A reader that only reads under its context needs no token.
func (rw *ReadWrite) AcquireRead(ctx context.Context, name string, options *AcquireOptions) (*Lease, error) {
	return rw.l.acquireShared(ctx, name, options, driver.ReadWrite, maxHolders)
}

// AcquireWrite acquires the lock for writing, like Locker.Acquire. The token is greater than those
// of all earlier readers and writers.
func (rw *ReadWrite) AcquireWrite(ctx context.Context, name string, options *AcquireOptions) (*Lease, error) {
	return rw.l.acquireShared(ctx, name, options, driver.ReadWrite, 0)
}

// Inspect is like Locker.Inspect. Holder.Write reports who is the writer.
func (rw *ReadWrite) Inspect(ctx context.Context, name string) (State, error) {
	return rw.l.inspect(ctx, name, driver.ReadWrite)
}

// Break is like Locker.Break, for one reader or the writer.
func (rw *ReadWrite) Break(ctx context.Context, name string, token int64) error {
	return rw.l.breakHolder(ctx, name, driver.ReadWrite, token)
}

// Semaphore acquires permits: at most n holders have one at the same time. Semaphores are
// independent of the locks with the same names. A Semaphore is safe for concurrent use. It needs no
// Close; close its Locker.
//
// Each permit has a lease with a token, which its holder extends. The permit of a dead holder is
// free after its TTL. There is no order between processes. A holder that acquires a second permit
// uses another one: WithOwner has no effect, and n holders that each wait for one more wait
// forever.
//
// n belongs to the callers and is not stored. If processes use different numbers, each of them adds
// a holder only as long as there are fewer than its own number. A name has 1 to 1000 bytes. In
// Redis a semaphore is a hash, prefix{name}:sem; the rest is as with ReadWrite.
type Semaphore struct {
	l *Locker
	n int
}

// NewSemaphore returns the semaphores of a Locker with n permits each, from 1 to 1000. The error is
// errors.ErrUnsupported unless the Locker is one of NewRedis, NewLocal, mysqllock or pglock.
func NewSemaphore(l *Locker, n int) (*Semaphore, error) {
	if l == nil {
		return nil, errors.New("lock: the Locker is nil")
	}
	if n < 1 || n > maxHolders {
		return nil, fmt.Errorf("lock: a semaphore with %d permits: must be from 1 to %d", n, maxHolders)
	}
	_, err := l.extended()
	return &Semaphore{l, n}, err
}

// Acquire acquires a permit, like Locker.Acquire. Tokens increase from holder to holder, so a
// resource that compares them accepts only the latest: use them to tell holders apart.
func (s *Semaphore) Acquire(ctx context.Context, name string, options *AcquireOptions) (*Lease, error) {
	return s.l.acquireShared(ctx, name, options, driver.Semaphore, s.n)
}

// Inspect is like Locker.Inspect.
func (s *Semaphore) Inspect(ctx context.Context, name string) (State, error) {
	return s.l.inspect(ctx, name, driver.Semaphore)
}

// Break is like Locker.Break, for one holder.
func (s *Semaphore) Break(ctx context.Context, name string, token int64) error {
	return s.l.breakHolder(ctx, name, driver.Semaphore, token)
}

func (l *Locker) acquireShared(
	ctx context.Context, name string, options *AcquireOptions, kind driver.Kind, limit int,
) (*Lease, error) {
	if len(name) > maxSharedName {
		return nil, failed(OpAcquire, l.options.Prefix+name,
			fmt.Errorf("the name must have at most %d bytes, not %d", maxSharedName, len(name)))
	}
	return l.acquire(ctx, name, options, request{kind: kind, limit: limit})
}
