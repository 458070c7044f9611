package lock

import "context"

// WithOwner returns a context that names a new owner of locks: a caller that acquires, with it or
// one made from it, a lock that the same owner holds already has it at once, once more; the lock
// passes on when it was released as often. It is held by the options of the first, whatever those
// of the others: also its token is 0 for all if the first has asked for none (Options.NoToken).
// Contexts without an owner are never re-entrant, nor are goroutines: they wait for each other.
//
// An owner's locks are shared by all goroutines that have its context: among them the lock excludes
// nothing. They are of one Locker; another Locker, in this process or elsewhere, has not heard of
// the owner.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, new(owner))
}

type ownerKey struct{}

type owner struct{ _ byte } // not empty: each has an address of his own

func ownerOf(ctx context.Context) *owner {
	o, _ := ctx.Value(ownerKey{}).(*owner)
	return o
}
