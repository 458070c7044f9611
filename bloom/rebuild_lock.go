package bloom

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// newLocker makes the Locker by which one process rebuilds at a time. It saves work only: if the lock
// fails, the descriptor still keeps two rebuilds apart.
func (f *Redis) newLocker() (*lock.Locker, error) {
	prefix, _ := f.lockName()
	return lock.NewRedis(f.rdb, &lock.LockerOptions{Prefix: prefix, Timeout: min(f.allTries(), time.Minute)})
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
	_, name := f.lockName()
	lease, err := f.locker.TryAcquire(ctx, name, nil)
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
