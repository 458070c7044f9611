package cacheaside

import (
	"fmt"
	"log/slog"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// Key names a row of a loader without the loader's types, so that writers, queues and other
// programs can tell which rows have changed: Loader.Key makes one, or a literal, {Loader: "user",
// Text: "42"}. Keys can be compared, and be keys of a map. Printed, a Key shows a hash, for keys
// may be private.
type Key struct {
	// Loader is the loader's name.
	Loader string

	// Version is its LoaderOptions.Version. Default: "1".
	Version string

	// Text is the key's text: a string as it is, an integer in decimal, what MarshalText or
	// LoaderOptions.Key returns; after LoaderOptions.Normalize, and of a time.Time in UTC.
	Text string

	// All stands for every key of the loader, of every version: Text and Version do not matter
	// then. See Loader.InvalidateAll for its promises.
	All bool

	err      *keyError // why the key has no text
	existing bool      // see Existing
}

type keyError struct{ err error }

// Key names key for code that does not know its type. If key has no text (its MarshalText fails),
// each function that is given the Key returns that error, before it does anything.
func (l *Loader[K, V]) Key(key K) Key {
	k := Key{Loader: l.name, Version: l.options.Version}
	_, text, err := l.rows.Keys.Named(key)
	if err != nil {
		k.err = &keyError{err}
		return k
	}
	k.Text = text
	return k
}

// Existing is k for a row that is there before it is written, so that no filter need be told of it
// (LoaderOptions.Filter): its writes go on while the filter is out of reach. Existing is not for
// inserted rows: their filter would go on hiding them.
func (k Key) Existing() Key {
	k.existing = true
	return k
}

// AllKeys names every key of the loader, of every version.
func (l *Loader[K, V]) AllKeys() Key { return Key{Loader: l.name, All: true} }

// Check returns why a Key cannot be one: its loader's key has no text, or a name is not valid.
func (k Key) Check() error {
	if err := k.flaw(); err != nil {
		return k.wrap("key", err)
	}
	return nil
}

func (k Key) flaw() error {
	switch {
	case k.err != nil:
		return k.err.err
	case !keys.ValidName(k.Loader):
		return fmt.Errorf("Key.Loader %q: only letters, digits, '_', '.' and '-'", k.Loader)
	case k.Version != "" && !k.All && !keys.ValidName(k.Version):
		return fmt.Errorf("Key.Version %q: only letters, digits, '_', '.' and '-'", k.Version)
	}
	return nil
}

// wrap says what failed, for this key.
func (k Key) wrap(op string, err error) error {
	e := &Error{Op: op, Loader: k.Loader, Hash: k.Hash(), Err: err}
	if !k.All {
		e.Key = k.Text
	}
	return e
}

// Hash is the stable hash of loader and text that errors and logs show; of all keys, 0.
func (k Key) Hash() uint64 {
	if k.All {
		return 0
	}
	return keys.NewNamespace("", k.Loader, "").Hash(k.Text)
}

// String shows the loader's name and a hash of the text.
func (k Key) String() string {
	if k.All {
		return k.Loader + " all keys"
	}
	return fmt.Sprintf("%s key#%016x", k.Loader, k.Hash())
}

// GoString is String.
func (k Key) GoString() string { return k.String() }

// LogValue is String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }
