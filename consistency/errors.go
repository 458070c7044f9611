package consistency

import "errors"

// Errors of a Writer, to be tested with errors.Is. They are wrapped together with their cause.
var (
	// ErrUnknown means that the outcome of the transaction is unknown: COMMIT was sent and failed,
	// for example because the connection was lost, or the function of Update ended the transaction
	// itself. The server may have committed it, or may still commit it. Its keys were invalidated,
	// and will be invalidated once more.
	ErrUnknown = errors.New("consistency: it is not known whether the transaction was committed")

	// ErrQueued means that the transaction was committed, but some keys could not be invalidated.
	// Their invalidations are in the queue in the memory of this process, and are retried. Do not
	// repeat the write.
	ErrQueued = errors.New("consistency: committed, but the caches may hold the old value until the queued " +
		"invalidation succeeds")

	// ErrNotQueued means that the transaction was committed, that some keys could not be
	// invalidated, and that the queue did not accept their invalidations either. Together with
	// ErrUnknown, the transaction may have been committed. Call Cache.InvalidateKeys with the keys
	// until it succeeds. Do not repeat a committed write.
	ErrNotQueued = errors.New("consistency: committed, but the caches may hold the old value, and the " +
		"invalidation could not be queued")

	// ErrNotInvalidated means that the transaction was rolled back, and that its keys could neither
	// be invalidated nor queued. A database can have committed a part of a transaction that it
	// rolls back (docs/guides/writing.md). Call Cache.InvalidateKeys with the keys until it
	// succeeds. The write may be repeated.
	ErrNotInvalidated = errors.New("consistency: rolled back, but if a part was committed, the caches may hold its " +
		"old value, because the invalidation could not be queued")
)
