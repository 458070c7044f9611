// Package fault defines the errors that package cacheaside exports and that the packages below it
// return. Package cacheaside documents them.
package fault

import (
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// The errors that package cacheaside exports under these names with the prefix Err.
//
//nolint:revive,staticcheck // the name of the package says that they are errors
var (
	NotFound    = errors.New("cacheaside: not found")
	BadKey      = errors.New("cacheaside: the key is invalid")
	LoadFailed  = errors.New("cacheaside: a load of this key failed a moment ago")
	LoadTimeout = errors.New("cacheaside: the load timed out")
	Unavailable = errors.New("cacheaside: no load is admitted now")
	LoadCycle   = errors.New(
		"cacheaside: the load would wait for itself: it asks for a key that it loads, or whose load waits for it")
	Redis  = errors.New("cacheaside: redis")
	Closed = errors.New("cacheaside: the cache is closed")
)

// The errors of groups that a loader does not have. They are wrapped in an *Error.
//
//nolint:revive,staticcheck // as above
var (
	NoGroups    = errors.New("the loader has no LoaderOptions.Groups")
	UnknownKind = errors.New(
		"the name of the group does not begin with the name of one of LoaderOptions.GroupKinds and a colon: use " +
			"GroupKind.Of")
)

// OfRedis marks err as an error of Redis or its client.
func OfRedis(err error) error {
	if errors.Is(err, conn.ErrClosed) {
		return Closed // the cache was closed during the command
	}
	return fmt.Errorf("%w: %w", Redis, err)
}
