// Package errtree limits the size of errors that load functions return. Such an error may be a
// tree: a batch load that reads through another batch load wraps one error for each key, each of
// which may wrap such a tree again. The library keeps the error for each key of a call, and
// errors.Is walks it for each key, so it must be small.
package errtree

import (
	"fmt"
	"iter"
	"reflect"
)

const (
	small    = 64      // maximum number of nodes of a tree that Bound does not change
	most     = 10_000  // maximum number of nodes that are visited
	ofType   = 16      // maximum number of errors of one type in a summary
	inAll    = 128     // maximum number of errors in a summary
	longText = 2 << 10 // maximum length of the text of a summary, in bytes
)

// Bound returns err if its tree is small, and otherwise a summary of it. The summary is not a
// tree, but errors.Is and errors.As find the errors of the tree in it: up to 16 different ones of
// each type. Its text is cut after 2 KiB.
//
// Bound calls methods of err, which may panic or hang.
func Bound(err error) error {
	nodes := 0
	walk(err, func(error) bool { nodes++; return nodes <= most })
	if nodes <= small {
		return err
	}
	s, leaf := summarize(err)
	switch {
	case nodes <= most:
		s.text = err.Error()
	case leaf != nil: // the text of err may never end
		s.text = fmt.Sprintf("a %T of very many errors, one of them: %v", err, leaf)
	default:
		s.text = fmt.Sprintf("a %T of very many errors", err)
	}
	if len(s.text) > longText {
		s.text = s.text[:longText] + "…"
	}
	return s
}

// walk calls below for each node of the tree of err, in preorder. If below returns false, walk
// skips what the node wraps. A summary represents its errors, which wrap nothing else.
func walk(err error, below func(node error) bool) {
	for err != nil {
		if e, ok := err.(*summary); ok { //nolint:errorlint // a node of the tree
			for _, err := range e.errs {
				below(err)
			}
			return
		}
		if !below(err) {
			return
		}
		switch e := err.(type) { //nolint:errorlint // this loop walks the tree
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err, below)
			}
			return
		default:
			return
		}
	}
}

// summarize returns a summary without a text, and the first error in it that wraps no other.
func summarize(err error) (s *summary, leaf error) {
	s = &summary{}
	left, seen, types := most, make(map[error]bool), make(map[reflect.Type]int)
	walk(err, func(node error) bool {
		if left--; left < 0 || len(s.errs) == inAll {
			return false
		}
		if reflect.ValueOf(node).Comparable() {
			if seen[node] {
				return false
			}
			seen[node] = true
		}
		switch node.(type) { //nolint:errorlint // likewise
		case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		default:
			if leaf == nil {
				leaf = node
			}
		}
		if t := reflect.TypeOf(node); types[t] < ofType {
			types[t]++
			s.errs = append(s.errs, node)
		}
		return true
	})
	return s, leaf
}

// Shared returns a Bound that returns the same result for consecutive calls with the same error:
// a load function may return one error for all its keys.
func Shared() func(error) error {
	var last, bound error
	return func(err error) error {
		switch {
		case err == nil:
			return nil
		case last == nil || reflect.TypeOf(err).Kind() != reflect.Pointer || err != last: //nolint:errorlint // the same value
			last, bound = err, Bound(err)
		}
		return bound
	}
}

// Causes returns errs without nil errors, and only the first of those with the same cause. cause
// returns nil for an error that has none.
func Causes(errs iter.Seq[error], cause func(error) error) []error {
	var causes []error
	seen := make(map[error]bool)
	for err := range errs {
		if err == nil {
			continue
		}
		if first := cause(err); first != nil && reflect.ValueOf(first).Comparable() {
			if seen[first] {
				continue
			}
			seen[first] = true
		}
		causes = append(causes, err)
	}
	return causes
}

// A summary contains the different errors of a tree that is too large.
type summary struct {
	text string
	errs []error
}

func (s *summary) Error() string { return s.text }

// Is compares target with each error, but not with the errors that these wrap, because errs
// contains them too.
func (s *summary) Is(target error) bool {
	comparable := reflect.TypeOf(target).Comparable()
	for _, err := range s.errs {
		if comparable && err == target { // errors.Is would walk the tree of err
			return true
		}
		if e, ok := err.(interface{ Is(error) bool }); ok && e.Is(target) {
			return true
		}
	}
	return false
}

// As sets target to the first error whose type fits.
func (s *summary) As(target any) bool {
	to := reflect.ValueOf(target).Elem()
	for _, err := range s.errs {
		if reflect.TypeOf(err).AssignableTo(to.Type()) {
			to.Set(reflect.ValueOf(err))
			return true
		}
		if e, ok := err.(interface{ As(any) bool }); ok && e.As(target) {
			return true
		}
	}
	return false
}
