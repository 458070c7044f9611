package bloom

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Options are the settings of a filter. The zero value and nil use the defaults.
type Options struct {
	// Prefix is the beginning of all keys of a filter in Redis. It consists of letters, digits,
	// "_", "." and "-". Set it to cacheaside.Options.Prefix, so that filters of two applications
	// cannot have the same name; see ErrForeign. Default: "cacheaside".
	Prefix string

	// Timeout is the maximum duration of each round trip of a lookup. A lookup that times out
	// returns "maybe". A round trip of any other operation can take four times as long, or a
	// second; an announcement can take sixteen times as long. Default: 250 ms. From 1 ms to 1
	// minute. Raise it if the network is slower.
	Timeout time.Duration

	// MaxStaleness is the maximum time until a Replica contains a key that another process has
	// added. Normally the Replica receives the key within milliseconds. A Replica that receives
	// nothing stops refusing keys on its own within MaxStaleness. Default: 2 s. From 20 ms to 1
	// minute.
	MaxStaleness time.Duration

	// MaxReplicaBytes is the size of the largest filter that a Replica copies; see
	// Stats.TooLarge. While a rebuilt filter replaces another, the process holds two copies.
	// Default: 512 MiB, enough for about 450 million keys at 1 %. At least 8 bytes.
	MaxReplicaBytes int64

	// Logger logs losses of data in Redis, rows that the filter has hidden, filters of other
	// applications, and failures of Maintain. Default: slog.Default.
	Logger *slog.Logger

	// watchInterval is the approximate interval at which the process checks whether Redis has
	// lost data. A negative value disables the checks, in tests that count commands.
	watchInterval time.Duration
}

// defaultWatchInterval is the default of Options.watchInterval.
const defaultWatchInterval = 500 * time.Millisecond

// withDefaults returns o with each zero field set to its default.
func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Prefix = cmp.Or(d.Prefix, "cacheaside")
	d.Timeout = cmp.Or(d.Timeout, 250*time.Millisecond)
	d.MaxStaleness = cmp.Or(d.MaxStaleness, 2*time.Second)
	d.MaxReplicaBytes = cmp.Or(d.MaxReplicaBytes, 512<<20)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	d.watchInterval = cmp.Or(d.watchInterval, defaultWatchInterval)
	return d
}

func (o Options) check() error {
	if !keys.ValidName(o.Prefix) {
		return fmt.Errorf("Options.Prefix %q: only letters, digits, '_', '.' and '-'", o.Prefix)
	}
	if o.MaxReplicaBytes < 8 {
		return fmt.Errorf("Options.MaxReplicaBytes %d: at least 8", o.MaxReplicaBytes)
	}
	return cmp.Or(
		wording.Range("Options.Timeout", o.Timeout, time.Millisecond, time.Minute),
		wording.Range("Options.MaxStaleness", o.MaxStaleness, 20*time.Millisecond, time.Minute))
}

// Errors to test for with errors.Is. After each of them, the filter that served before continues
// to serve.
var (
	// ErrFewer means that a Rebuild has not replaced the filter because the new one has
	// too few keys: by estimate fewer than nine tenths of the present keys, not counting those
	// that Deleted has reported. If there is no present filter, the new one has no keys at all.
	// See RebuildOptions.AllowFewer.
	ErrFewer = errors.New("bloom: the new filter has too few keys, and does not replace the present one")

	// ErrRebuilding means that another process, or another call, is rebuilding the filter. If
	// Options.OnGap of a canal.Consumer returns ErrRebuilding, the Consumer waits for that rebuild
	// and calls OnGap again.
	ErrRebuilding = errors.New("bloom: another process is rebuilding the filter")
)

var errClosed = errors.New("the filter is closed")

// errReplaced ends a rebuild because another one has replaced the generation that it fills.
var errReplaced = errors.New("another rebuild has replaced this one")

// errLost ends a rebuild because Redis has lost a part of the generation that it fills.
var errLost = errors.New("Redis has lost a part of the new filter")
