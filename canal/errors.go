package canal

import "errors"

var (
	// ErrPositionLost says that a Source cannot go on from where the Consumer was: the log was
	// purged, or belongs to another server, or to one that was restored from a backup.
	ErrPositionLost = errors.New("the position is lost")

	// ErrSetup says that a Source cannot work as things are set up. Its text names the setting.
	ErrSetup = errors.New("not set up correctly")

	// ErrSuperseded says that another Consumer, which has the lock since, has saved its position;
	// or that the Locker was replaced by another kind, or by none, whose tokens are smaller: then
	// remove the checkpoint, or set its token to 0.
	ErrSuperseded = errors.New("superseded by another Consumer")

	errMalformed = errors.New("the source does not say why")
)
