package cacheaside

import (
	"errors"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// wrap says what failed, for which own key.
func (l *Loader[K, V]) wrap(op string, own K, err error) error {
	text, _ := l.rows.Keys.Text(own) // if that is what failed, it is err
	return l.wrapText(op, text, err)
}

func (l *Loader[K, V]) wrapText(op, text string, err error) error {
	return &Error{Op: op, Loader: l.name, Key: text, Hash: l.rows.Keys.Hash(text), Err: err}
}

// wrapAll joins the errors of keys that have failed for one cause.
func (l *Loader[K, V]) wrapAll(op string, keys []K, err error) error {
	errs := make([]error, len(keys))
	for i, key := range keys {
		_, text, _ := l.rows.Keys.Named(key)
		errs[i] = l.wrapText(op, text, err)
	}
	return errors.Join(errs...)
}

// own returns the key that the loader uses for key: see rows.Keys.Own.
func (l *Loader[K, V]) own(op string, key K) (own K, err error) {
	if l.rows.Keys.Own == nil {
		return key, nil
	}
	if own, err = l.rows.Keys.Own(key); err != nil {
		err = l.wrapText(op, "", err)
	}
	return own, err
}

// batch is own for several keys, and returns the errors of those that have none.
func (l *Loader[K, V]) batch(op string, keys []K) (b rows.Batch[K], errs map[K]error) {
	return l.rows.Keys.Batch(keys, func(err error) error { return l.wrapText(op, "", err) })
}

// failures are the errors of keys of one operation, by the caller's keys.
type failures[K comparable, V any] struct {
	of   *Loader[K, V]
	op   string
	errs map[K]error
}

// adder returns a function that adds the error of the i-th key of b.
func (f *failures[K, V]) adder(b rows.Batch[K]) func(i int, err error) {
	return func(i int, err error) {
		if f.errs == nil {
			f.errs = make(map[K]error)
		}
		f.errs[b.Asked[i]] = f.of.wrap(f.op, b.Own[i], err)
	}
}

// batchError returns the *BatchError of errs, or nil if there are none.
func batchError[K comparable](errs map[K]error) error {
	if len(errs) == 0 {
		return nil
	}
	return &BatchError[K]{Errs: errs}
}

// keyErrors are why keys of one call have failed.
type keyErrors map[Key]error

// add does nothing for a nil error.
func (e keyErrors) add(op string, k Key, err error) {
	if err != nil {
		e.join(k, k.wrap(op, err))
	}
}

func (e keyErrors) addAll(op string, keys []Key, err error) {
	for _, k := range keys {
		e.add(op, k, err)
	}
}

func (e keyErrors) join(k Key, err error) {
	if before := e[k]; before != nil {
		err = errors.Join(before, err)
	}
	e[k] = err
}

func (e keyErrors) joinAll(others keyErrors) {
	for k, err := range others {
		e.join(k, err)
	}
}

func (e keyErrors) err() error {
	return batchError[Key](e)
}
