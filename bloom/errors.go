package bloom

import "errors"

// Errors to test for with errors.Is. After each of them the filter that was there before serves on.
var (
	// ErrFewer means that the new filter of a Rebuild or a Load has not taken its place: it holds
	// fewer than nine tenths of the keys of the present one, less those that Deleted has told of;
	// or there is none to compare with, and it holds no key at all. See RebuildOptions.AllowFewer.
	ErrFewer = errors.New("the new filter has too few keys, and does not replace the present one")

	// ErrHides means that the new filter of a Rebuild or a Load has not taken its place: it lacks
	// keys whose rows have been read in this process, by loaders that use the filter (see
	// CheckRebuilt), and these rows are still there; or a key whose row was found while it was
	// built, in any process (see Redis.Hidden).
	ErrHides = errors.New("the new filter would hide rows, and does not replace the present one")

	// ErrRebuilding means that another process, or another call, rebuilds or loads the filter now. A
	// canal.Consumer whose Options.OnGap returns it waits for that rebuild, and calls OnGap again.
	ErrRebuilding = errors.New("another process is rebuilding the filter")

	// ErrIncomplete means that there is nothing to save: no Rebuild or Load has completed the
	// filter.
	ErrIncomplete = errors.New("the filter is not complete")

	// ErrCorrupt means that Load was not given a file of Save, or not the whole of it.
	ErrCorrupt = errors.New("not a saved filter, or a damaged one")

	// ErrVersion means that Load was given a file of a newer version of this package.
	ErrVersion = errors.New("a newer version of the library saved the filter")
)
