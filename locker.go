package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Locker is a lock service: LoaderOptions.Locker. A *lock.Locker of package lock is one. Its method
// is called by many goroutines at once.
type Locker interface {
	// Lock waits for the lock of this name until it has it, ctx ends, wait has passed, or the
	// service fails. It keeps the lock until unlock is called, which is called once, also when ctx
	// has ended. The error of unlock says that the lock is not known to have been kept until then,
	// or to be free now. A panic in either is taken for an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// lockable tells whether the options are those of a loader whose rows can be locked one by one.
func (o LoaderOptions) lockable(batch bool) error {
	switch {
	case o.MustLock && o.Locker == nil:
		return errors.New("LoaderOptions.MustLock: there is no Locker")
	case batch && o.Locker != nil:
		return errors.New("LoaderOptions.Locker: a batch load is for many rows, and would need a lock of each; use NewLoader")
	case isNilPointer(o.Locker):
		return fmt.Errorf("LoaderOptions.Locker: a nil %T; for no lock leave it nil", o.Locker)
	}
	return nil
}
