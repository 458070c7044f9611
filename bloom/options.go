package bloom

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/check"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// Options are the settings of a filter. The zero value, and nil, are good defaults.
type Options struct {
	// Prefix begins all keys of a filter in Redis. Letters, digits, "_", "." and "-". Default:
	// "cacheaside".
	Prefix string

	// Timeout bounds each trip to Redis of a lookup, which answers "maybe" then; each trip of
	// anything else may take four times as long, or a second, and an announcement sixteen times.
	// Default: 250 ms. From 1 ms to 1 minute. Raise it if the network is slower.
	Timeout time.Duration

	// MaxStaleness is how long a Replica may not know of a key that another process has added. As a
	// rule it receives the key within milliseconds. A Replica that receives nothing stops answering
	// "no" by itself within MaxStaleness. Default: 2 s. From 20 ms to 1 minute.
	MaxStaleness time.Duration

	// MaxReplicaBytes is the size of the largest filter that a Replica copies; see Stats.TooLarge.
	// While a rebuilt filter takes the place of another, there are two copies. Default: 512 MiB,
	// which is some 450 million keys at 1 %. From 8 bytes.
	MaxReplicaBytes int64

	watchInterval time.Duration // about how often Redis is looked at for what it may have lost; negative, in tests that count commands: never
}

// watchEvery is the default of Options.watch.
const defaultWatchInterval = 500 * time.Millisecond

// withDefaults returns o with defaults in the place of zeros.
func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, "cacheaside")
	d.Timeout = cmp.Or(d.Timeout, 250*time.Millisecond)
	d.MaxStaleness = cmp.Or(d.MaxStaleness, 2*time.Second)
	d.MaxReplicaBytes = cmp.Or(d.MaxReplicaBytes, 512<<20)
	d.watchInterval = cmp.Or(d.watchInterval, defaultWatchInterval)
	return d
}

func (o Options) check() error {
	if !keys.ValidName(o.Prefix) {
		return fmt.Errorf("Options.Prefix %q: only letters, digits, '_', '.' and '-'", o.Prefix)
	}
	if o.MaxReplicaBytes < 8 {
		return fmt.Errorf("Options.MaxReplicaBytes %d: from 8", o.MaxReplicaBytes)
	}
	return cmp.Or(
		check.Range("Options.Timeout", o.Timeout, time.Millisecond, time.Minute),
		check.Range("Options.MaxStaleness", o.MaxStaleness, 20*time.Millisecond, time.Minute))
}

// Errors to test for with errors.Is. After each of them the filter that was there before serves on.
var (
	// ErrFewer means that a Rebuild or a Load has not replaced the filter: the new one has fewer
	// than nine tenths of its keys, by an estimate, less those that Deleted has reported; or there
	// is none to compare with, and the new one has no key. See RebuildOptions.AllowFewer.
	ErrFewer = errors.New("the new filter has too few keys, and does not replace the present one")

	// ErrHides means that the new filter of a Rebuild or a Load has not taken its place: it lacks
	// keys whose rows have been read in this process, by loaders that use the filter (see
	// CheckRebuilt), and these rows are still there; or a key whose row was found while it was
	// built, in any process (see Redis.Hidden).
	ErrHides = errors.New("the new filter would hide rows, and does not replace the present one")

	// ErrRebuilding means that another process, or another call, rebuilds or loads the filter now.
	// A canal.Consumer whose Options.OnGap returns it waits for that rebuild, and calls OnGap
	// again.
	ErrRebuilding = errors.New("another process is rebuilding the filter")

	// ErrIncomplete means that there is nothing to save: no Rebuild or Load has completed the
	// filter.
	ErrIncomplete = errors.New("the filter is not complete")

	// ErrCorrupt means that Load was not given a file of Save, or not the whole of it.
	ErrCorrupt = errors.New("not a saved filter, or a damaged one")

	// ErrVersion means that Load was given a file of a newer version of this package.
	ErrVersion = errors.New("a newer version of the library saved the filter")
)

var errClosed = errors.New("the filter is closed")

// errReplaced ends a rebuild: another has replaced the generation that it fills.
var errReplaced = errors.New("another rebuild has replaced this one")

// errLost ends a rebuild: Redis has lost a part of the generation that it fills.
var errLost = errors.New("Redis has lost a part of the new filter")
