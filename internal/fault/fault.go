// Package fault has the errors that package cacheaside gives its callers and the packages beneath
// it make. They are documented there.
package fault

import "errors"

// The errors of package cacheaside of these names, with Err before them.
var (
	NotFound    = errors.New("cacheaside: not found")
	LoadFailed  = errors.New("a load of this key failed a moment ago")
	LoadTimeout = errors.New("the load timed out")
	Unavailable = errors.New("the database is not to be asked now")
	LoadCycle   = errors.New("the load would wait for itself: it asks for a key that it loads, or whose load waits for it")
	Closed      = errors.New("the cache is closed")
)
