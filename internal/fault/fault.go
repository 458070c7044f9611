// Package fault has the errors that package cacheaside gives its callers and the packages beneath
// it make. They are documented there.
package fault

import (
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// The errors of package cacheaside of these names, with Err before them.
var (
	NotFound    = errors.New("cacheaside: not found")
	LoadFailed  = errors.New("a load of this key failed a moment ago")
	LoadTimeout = errors.New("the load timed out")
	Unavailable = errors.New("no load is admitted now")
	LoadCycle   = errors.New("the load would wait for itself: it asks for a key that it loads, or whose load waits for it")
	Redis       = errors.New("redis")
	Closed      = errors.New("the cache is closed")
)

// OfRedis marks err as Redis's or its client's.
func OfRedis(err error) error {
	if errors.Is(err, conn.ErrClosed) {
		return Closed // the cache was closed meanwhile
	}
	return fmt.Errorf("%w: %w", Redis, err)
}
