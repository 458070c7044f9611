package cacheaside

import (
	"errors"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// wrap returns err with the operation and the key. canonical is a key as
// Loader.canonical returns it.
func (l *Loader[K, V]) wrap(op string, canonical K, err error) error {
	text, _ := l.rows.Keys.Text(canonical) // if this fails, err says so
	return l.wrapText(op, text, err)
}

func (l *Loader[K, V]) wrapText(op, text string, err error) error {
	return &Error{Op: op, Loader: l.name, Key: text, Hash: l.rows.Keys.Hash(text), Err: err}
}

// allFailed returns the errors of keys that have failed for the same cause.
func (l *Loader[K, V]) allFailed(op string, keys []K, err error) map[K]error {
	errs := make(map[K]error, len(keys))
	for _, key := range keys {
		_, text, _ := l.rows.Keys.Named(key)
		errs[key] = l.wrapText(op, text, err)
	}
	return errs
}

// canonical returns the key that the loader uses in place of the caller's key: see
// rows.Keys.Canonical.
func (l *Loader[K, V]) canonical(op string, key K) (canonical K, err error) {
	if l.rows.Keys.Canonical == nil {
		return key, nil
	}
	if canonical, err = l.rows.Keys.Canonical(key); err != nil {
		err = l.wrapText(op, "", err)
	}
	return canonical, err
}

// batch returns the keys that the loader uses for keys, and the errors of keys that have none.
func (l *Loader[K, V]) batch(op string, keys []K) (b rows.Batch[K], errs map[K]error) {
	return l.rows.Keys.Batch(keys, func(err error) error { return l.wrapText(op, "", err) })
}

// failures collects the errors of one operation, by the caller's keys.
type failures[K comparable, V any] struct {
	loader *Loader[K, V]
	op     string
	errs   map[K]error
}

// adder returns a function that adds the error of the i-th key of b.
func (f *failures[K, V]) adder(b rows.Batch[K]) func(i int, err error) {
	return func(i int, err error) {
		text, _ := f.loader.rows.Keys.Text(b.Canonical[i]) // if this fails, err says so
		f.add(b.Asked[i], text, err)
	}
}

// add adds the error of a caller's key, whose text is text.
func (f *failures[K, V]) add(key K, text string, err error) {
	if f.errs == nil {
		f.errs = make(map[K]error)
	}
	f.errs[key] = f.loader.wrapText(f.op, text, err)
}

// batchError returns errs as a *BatchError, or nil if errs is empty.
func batchError[K comparable](errs map[K]error) error {
	if len(errs) == 0 {
		return nil
	}
	return &BatchError[K]{Errs: errs}
}

// joinError adds an error of key to errs. A key with several causes has one *Error, which wraps
// all of them.
func joinError[K comparable](errs map[K]error, key K, err error) {
	before, failed := errs[key].(*Error) //nolint:errorlint // its own
	more, ok := err.(*Error)             //nolint:errorlint // likewise
	if failed && ok {
		err = &Error{Op: before.Op, Loader: before.Loader, Key: before.Key, Hash: before.Hash,
			Err: errors.Join(before.Err, more.Err)}
	}
	errs[key] = err
}

// keyErrors are the errors of the keys of one call.
type keyErrors map[Key]error

// add adds err to the errors of key. It does nothing if err is nil.
func (k keyErrors) add(op string, key Key, err error) {
	if err != nil {
		joinError(k, key, key.wrap(op, err))
	}
}

func (k keyErrors) addAll(op string, keys []Key, err error) {
	for _, key := range keys {
		k.add(op, key, err)
	}
}

func (k keyErrors) joinAll(others keyErrors) {
	for key, err := range others {
		joinError(k, key, err)
	}
}

func (k keyErrors) err() error {
	return batchError[Key](k)
}
