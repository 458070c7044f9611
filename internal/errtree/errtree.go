// Package errtree bounds the errors that load functions return. Such an error may be a tree: a
// batch load that reads by another batch load wraps one error for each key, each of which may wrap
// such a tree again. The library keeps the error for each key of a call, and errors.Is walks it for
// each key, so it must be small.
package errtree

import (
	"fmt"
	"iter"
	"reflect"
)

const (
	small    = 64      // visits of a walk of an error that is kept as it is
	most     = 10_000  // visits of the walk that summarizes a larger one
	ofType   = 16      // errors of one type in a summary
	inAll    = 128     // errors in a summary
	longText = 2 << 10 // bytes of the text of a summary
)

// Bound returns err if its tree is small, and else a summary of it. The summary is not a tree, but
// errors.Is and errors.As find the errors of the tree in it: up to 16 different ones of each type.
// Its text is cut after 2 KiB.
//
// Bound calls methods of err, which may panic or hang.
func Bound(err error) error {
	left := most
	whole := within(err, &left)
	if whole && left >= most-small {
		return err
	}
	s := &summary{}
	w := walk{summary: s, visits: most, seen: make(map[error]bool), types: make(map[reflect.Type]int)}
	w.visit(err)
	s.text = w.text(err, whole)
	return s
}

// Shared returns a Bound that returns the same error again for the error that it was called with
// before: a load function may return one and the same for all its keys.
func Shared() func(error) error {
	var last, bound error
	return func(err error) error {
		switch {
		case err == nil:
			return nil
		case last == nil || reflect.TypeOf(err).Kind() != reflect.Pointer || err != last: //nolint:errorlint // the very same
			last, bound = err, Bound(err)
		}
		return bound
	}
}

// Causes returns errs without nil errors, and of those with one and the same cause only the first.
// cause returns nil for an error that has none.
func Causes(errs iter.Seq[error], cause func(error) error) []error {
	var causes []error
	seen := make(map[error]bool)
	for err := range errs {
		if err == nil {
			continue
		}
		if of := cause(err); of != nil && reflect.ValueOf(of).Comparable() {
			if seen[of] {
				continue
			}
			seen[of] = true
		}
		causes = append(causes, err)
	}
	return causes
}

// within reports whether the tree of err has no more than so many nodes.
func within(err error, visits *int) bool {
	for err != nil {
		if *visits--; *visits < 0 {
			return false
		}
		switch of := err.(type) {
		case *summary:
			*visits -= len(of.errs)
			return *visits >= 0
		case interface{ Unwrap() error }:
			err = of.Unwrap()
		case interface{ Unwrap() []error }:
			for _, err := range of.Unwrap() {
				if !within(err, visits) {
					return false
				}
			}
			return true
		default:
			return true
		}
	}
	return true
}

// walk fills a summary with the different errors of a tree.
type walk struct {
	*summary
	visits int // that are left
	seen   map[error]bool
	types  map[reflect.Type]int
	leaf   error // the first that wraps no other
}

func (w *walk) visit(err error) {
	for err != nil && w.visits > 0 && len(w.errs) < inAll {
		w.visits--
		if of, ok := err.(*summary); ok { //nolint:errorlint // a node of the tree
			for _, err := range of.errs { // with all that they wrap
				w.visits--
				w.add(err)
			}
			return
		}
		if !w.add(err) {
			return
		}
		switch of := err.(type) {
		case interface{ Unwrap() error }:
			err = of.Unwrap()
		case interface{ Unwrap() []error }:
			for _, err := range of.Unwrap() {
				w.visit(err)
			}
			return
		default:
			if w.leaf == nil {
				w.leaf = err
			}
			return
		}
	}
}

// add reports whether err is new, and puts it into the summary if there is room for its type.
func (w *walk) add(err error) (isNew bool) {
	if reflect.ValueOf(err).Comparable() {
		if w.seen[err] {
			return false
		}
		w.seen[err] = true
	}
	if t := reflect.TypeOf(err); w.types[t] < ofType && len(w.errs) < inAll {
		w.types[t]++
		w.errs = append(w.errs, err)
	}
	return true
}

// text returns the text of err. If the tree is so large that its text may never end, it is the text
// of one error in it.
func (w *walk) text(err error, whole bool) (text string) {
	switch {
	case whole:
		text = err.Error()
	case w.leaf != nil:
		text = fmt.Sprintf("a %T of very many errors, one of them: %v", err, w.leaf)
	default:
		text = fmt.Sprintf("a %T of very many errors", err)
	}
	if len(text) > longText {
		text = text[:longText] + "…"
	}
	return text
}

// summary is the different errors of a tree that is too large to be kept.
type summary struct {
	text string
	errs []error
}

func (s *summary) Error() string { return s.text }

// Is compares target with each error, but not with what these wrap: that is in errs, too.
func (s *summary) Is(target error) bool {
	comparable := reflect.TypeOf(target).Comparable()
	for _, err := range s.errs {
		if comparable && err == target { //nolint:errorlint // its tree is not to be walked
			return true
		}
		if of, ok := err.(interface{ Is(error) bool }); ok && of.Is(target) { //nolint:errorlint // likewise
			return true
		}
	}
	return false
}

// As sets target to the first error that fits.
func (s *summary) As(target any) bool {
	to := reflect.ValueOf(target).Elem()
	for _, err := range s.errs {
		if reflect.TypeOf(err).AssignableTo(to.Type()) {
			to.Set(reflect.ValueOf(err))
			return true
		}
		if of, ok := err.(interface{ As(any) bool }); ok && of.As(target) { //nolint:errorlint // likewise
			return true
		}
	}
	return false
}
