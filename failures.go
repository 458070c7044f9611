package cacheaside

import (
	"errors"
)

// wrap says what failed, for which key.
func (l *Loader[K, V]) wrap(op string, key K, err error) error {
	text, _ := l.rows.Keys.Text(key) // if that is what failed, it is err
	return &Error{Op: op, Loader: l.name, Key: text, Hash: l.rows.Keys.Hash(text), Err: err}
}

func (l *Loader[K, V]) wrapAll(op string, keys []K, err error) error {
	errs := make([]error, len(keys))
	for i, key := range keys {
		errs[i] = l.wrap(op, key, err)
	}
	return errors.Join(errs...)
}

// failures are the errors of keys of one operation.
type failures[K comparable, V any] struct {
	of   *Loader[K, V]
	op   string
	errs map[K]error
}

func (f *failures[K, V]) add(key K, err error) {
	if f.errs == nil {
		f.errs = make(map[K]error)
	}
	f.errs[key] = f.of.wrap(f.op, key, err)
}

func (f *failures[K, V]) err() error {
	if len(f.errs) == 0 {
		return nil
	}
	return &BatchError[K]{Errs: f.errs}
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
	if len(e) == 0 {
		return nil
	}
	return &BatchError[Key]{Errs: e}
}
