package lock

import "context"

// WithOwner returns a context that identifies a new owner of locks, which makes locks re-entrant. A
// caller whose context has the same owner as the holder acquires the lock again immediately. The
// lock is released when all of these leases are released. The options of the first acquisition
// apply to all: if it has set AcquireOptions.NoToken, the token may be 0 for all. Callers without
// an owner wait for each other, also on the same goroutine.
//
// All goroutines that share the owner share its locks, so the lock does not exclude them from
// each other. An owner is known to one Locker: another Locker, in this process or another one,
// treats the caller as a different owner.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, new(owner))
}

type ownerKey struct{}

type owner struct{ _ byte } // not empty, so that each owner has a distinct address

func ownerOf(ctx context.Context) *owner {
	o, _ := ctx.Value(ownerKey{}).(*owner)
	return o
}
