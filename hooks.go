package cacheaside

import "fmt"

// Hook is a typed function for an option, which has no type parameters: KeyOf and CloneOf make one,
// NewLoader checks that its types are the loader's. The zero Hook is none.
type Hook struct{ f any }

// KeyOf makes the Hook for LoaderOptions.Key: the text of a key, as by a method,
// KeyOf(pageKey.text). Keys that differ must have different texts, of any bytes and length.
func KeyOf[K comparable](text func(K) string) Hook { return Hook{text} }

// CloneOf makes the Hook for LoaderOptions.Clone: a copy of a value that shares nothing with it
// that a caller could change, as by CloneOf(Page.clone) or CloneOf(slices.Clone[[]int]).
func CloneOf[V any](clone func(V) V) Hook { return Hook{clone} }

// function returns what h holds, nil if nothing, or an error that names the field.
func function[F func(A) B, A, B any](h Hook, field, maker string) (F, error) {
	if h.f == nil {
		return nil, nil
	}
	f, ok := h.f.(func(A) B)
	switch {
	case !ok:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is a %T, and this loader needs a %T", field, maker, h.f, F(nil))
	case f == nil:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is nil", field, maker)
	}
	return f, nil
}
