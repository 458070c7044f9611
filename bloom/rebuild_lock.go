package bloom

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// locks has one rebuild run at a time, as a rule. It is there to save work: where the lock fails,
// two rebuilds are still kept apart by the descriptor.
type locks struct {
	mu     sync.Mutex
	locker *lock.Locker
	closed bool
}

var errClosed = errors.New("the filter is closed")

// locker is made when it is first needed.
func (f *Redis) locker() (*lock.Locker, error) {
	f.locks.mu.Lock()
	defer f.locks.mu.Unlock()
	if f.locks.closed {
		return nil, errClosed
	}
	if f.locks.locker == nil {
		prefix, _ := f.lockName()
		l, err := lock.NewRedis(f.rdb, &lock.LockerOptions{Prefix: prefix, Timeout: min(f.allTries(), time.Minute)})
		if err != nil {
			return nil, err
		}
		f.locks.locker = l
	}
	return f.locks.locker, nil
}

// lockName is that of the lock, and its prefix, which is of limited length.
func (f *Redis) lockName() (prefix, name string) {
	const what = "bloom-rebuild:"
	if p := f.options.Prefix + "::" + what; len(p) <= 64 {
		return p, f.name
	}
	return what, f.options.Prefix + "/" + f.name
}

// underLock calls work, unless it is being done elsewhere: then it is ErrRebuilding. work's context
// ends when the lock is lost, with lock.ErrLost.
func (f *Redis) underLock(ctx context.Context, work func(context.Context) error) error {
	locker, err := f.locker()
	if err != nil {
		return err
	}
	_, name := f.lockName()
	lease, err := locker.TryAcquire(ctx, name, nil)
	switch {
	case errors.Is(err, lock.ErrHeld):
		return ErrRebuilding
	case errors.Is(err, lock.ErrClosed):
		return errClosed
	case err != nil:
		return err
	}
	defer lease.Release() //nolint:errcheck // if it was lost, the descriptor has kept the two apart
	err = work(lease.Context())
	switch cause := context.Cause(lease.Context()); {
	case err == nil || ctx.Err() != nil || cause == nil:
		return err
	case errors.Is(cause, lock.ErrReleased): // by Close
		return errClosed
	default:
		return cause
	}
}

func (l *locks) close() {
	l.mu.Lock()
	l.closed = true
	locker := l.locker
	l.mu.Unlock()
	if locker != nil {
		_ = locker.Close() // ends what is under way
	}
}
