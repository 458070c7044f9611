package consistency

import "errors"

// Errors of a Writer, to test for with errors.Is. The errors wrapped beside them say why.
var (
	// ErrUnknown means that COMMIT was sent and failed, as by a lost connection, or that the
	// function of Update has ended the transaction by itself: the transaction may have been
	// committed, or be committed yet. Its keys were invalidated, and will be once more.
	ErrUnknown = errors.New("it is not known whether the transaction was committed")

	// ErrQueued means that the transaction was committed, but that not all caches could be told:
	// the missing invalidations are in the queue, in this process' memory, and are tried again. Do
	// not write again.
	ErrQueued = errors.New("committed, but the caches may hold the old value until the queued invalidation succeeds")

	// ErrNotQueued means that the transaction was committed (beside ErrUnknown: may have been;
	// beside an error of the function of Update: was rolled back, but perhaps not all of it), that
	// not all caches could be told, and that the missing invalidations could not even be queued.
	// Pass the keys to Cache.InvalidateKeys until it succeeds. Do not write again what was
	// committed.
	ErrNotQueued = errors.New("committed, but the caches may hold the old value, and the invalidation could not be queued")
)
