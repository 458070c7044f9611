package canal

import "errors"

var (
	// ErrPositionLost is returned when a Source cannot continue from the position of the
	// Consumer: the log was purged, belongs to another server, or belongs to a server that was
	// restored from a backup.
	ErrPositionLost = errors.New("canal: the position is lost")

	// ErrSetup is returned when a Source cannot work with the current settings. The error text
	// names the setting, and the statements that correct it. After a Consumer has worked, it
	// retries instead of returning it.
	ErrSetup = errors.New("canal: not set up correctly")

	// ErrSourceClosed is returned when the program has closed what the Source reads, such as the
	// channel of a Source of package envelope. A Consumer does not retry.
	ErrSourceClosed = errors.New("canal: the source is closed")

	// ErrSuperseded is returned by a Checkpoint when another Consumer has acquired the lock since
	// then and saved its position. It is also returned after the Locker was removed, or replaced
	// by one of another kind whose tokens are smaller. In that case remove the checkpoint, or set
	// its token to 0.
	ErrSuperseded = errors.New("canal: superseded by another Consumer")

	errMalformed = errors.New("the source gives no reason")
)
