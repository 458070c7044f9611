package cacheaside

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A Key identifies a row of a loader without the loader's types, so that writers, queues and
// other programs can say which rows have changed. Loader.Key returns one; a literal such as
// {Loader: "user", Text: "42"} is another way. Keys are comparable, and can be keys of a map. A
// printed Key shows a hash, because keys may be private.
type Key struct {
	// Loader is the name of the loader.
	Loader string

	// Version is the LoaderOptions.Version of the loader. Default: "1".
	Version string

	// Text is the text of the key: a string as it is, an integer in decimal, or the result of
	// MarshalText or LoaderOptions.Key. It is made after LoaderOptions.Normalize. The text of a
	// time.Time is that of the time in UTC.
	Text string

	// All means every key of the loader, of every version. Text and Version are then ignored. See
	// Loader.InvalidateAll for its promises.
	All bool

	// Group means the keys of a group (LoaderOptions.Groups), of every version. Text is then the
	// name of the group: see GroupKind.Of. Version is ignored. See Loader.InvalidateGroup for its
	// promises. In other processes whose loader has no Groups, they apply after
	// Options.MaxStaleness.
	Group bool

	err      *keyError // why the key has no text, or the loader no groups
	existing bool      // see Existing
}

type keyError struct{ err error }

// Key returns the Key of a row. If key has no text, because its MarshalText fails, each function
// that gets the Key returns that error before it does anything.
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

// Existing returns k with a mark that its row exists before the write, so that the key need not
// be added to a filter (LoaderOptions.Filter). Then the write succeeds even if the filter cannot
// be reached. Do not use Existing for inserted rows, because the filter would hide them.
func (k Key) Existing() Key {
	k.existing = true
	return k
}

// AllKeys returns the Key of all rows of the loader, of every version.
func (l *Loader[K, V]) AllKeys() Key { return Key{Loader: l.name, All: true} }

// GroupKey returns the Key of a group of the loader, in the spelling of LoaderOptions.GroupKinds.
// If the loader has no LoaderOptions.Groups, or the name is of none of its GroupKinds, each
// function that gets the Key returns an error that names the field before it does anything. In a
// process whose loader has no Groups while other processes have them, use a literal: see Key.Group.
func (l *Loader[K, V]) GroupKey(name string) Key {
	k := Key{Loader: l.name, Text: name, Group: true}
	if !l.rows.HasGroups() {
		k.err = &keyError{fault.NoGroups}
	} else if spelled, err := l.rows.GroupName(name); err != nil {
		k.err = &keyError{err}
	} else {
		k.Text = spelled
	}
	return k
}

// groupNames returns the function that returns the name of a group in the spelling of these kinds.
// If there are none, it is nil, and any name is that of a group.
func groupNames(kinds []GroupKind) func(name string) (string, error) {
	if len(kinds) == 0 {
		return nil
	}
	known := make(map[string]GroupKind, len(kinds))
	for _, k := range kinds {
		known[k.Name] = k
	}
	return func(name string) (spelled string, err error) {
		kind, value, ok := strings.Cut(name, ":")
		k, found := known[kind]
		if !ok || !found {
			return "", fault.UnknownKind
		}
		defer func() {
			if p := recover(); p != nil {
				err = caught(p)
			}
		}()
		return k.Of(value), nil
	}
}

// single reports whether k is one key, and not all keys or a group of its loader.
func (k Key) single() bool { return !k.All && !k.Group }

// Check returns an error if the Key is invalid: the loader's key has no text, or the name or
// version is not valid.
func (k Key) Check() error {
	if err := k.validate(); err != nil {
		return k.wrap(OpKey, err)
	}
	return nil
}

func (k Key) validate() error {
	switch {
	case k.err != nil:
		return k.err.err
	case !keys.ValidName(k.Loader):
		return fmt.Errorf("Key.Loader %q: only letters, digits, '_', '.' and '-'", k.Loader)
	case k.All && k.Group:
		return errors.New("Key.All and Key.Group: only one of them can be set")
	case k.Group && k.Text == "":
		return errors.New("Key.Text: a group needs a name")
	case k.Version != "" && k.single() && !keys.ValidName(k.Version):
		return fmt.Errorf("Key.Version %q: only letters, digits, '_', '.' and '-'", k.Version)
	}
	return nil
}

// wrap returns err with the operation and the key.
func (k Key) wrap(op string, err error) error {
	e := &Error{Op: op, Loader: k.Loader, Hash: k.Hash(), Err: err, group: k.Group}
	if !k.All {
		e.Key = k.Text
	}
	return e
}

// Hash returns the stable hash of loader and text that errors and logs contain. A group and a key
// of the same text have different hashes. The hash is 0 for all keys of a loader.
func (k Key) Hash() uint64 {
	switch {
	case k.All:
		return 0
	case k.Group:
		return keys.GroupHash(k.Loader, k.Text)
	}
	return keys.NewNamespace("", k.Loader, "").Hash(k.Text)
}

// String returns the name of the loader and a hash of the text.
func (k Key) String() string {
	switch {
	case k.All:
		return k.Loader + " all keys"
	case k.Group:
		return fmt.Sprintf("%s group#%016x", k.Loader, k.Hash())
	}
	return fmt.Sprintf("%s key#%016x", k.Loader, k.Hash())
}

// GoString returns String, so that %#v does not show the text.
func (k Key) GoString() string { return k.String() }

// LogValue returns String as a value for package slog.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }
