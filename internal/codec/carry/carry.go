// Package carry reports whether a codec carries the values of a type there and back. It goes by the
// type, once. It calls the methods of two kinds of types only: of a struct that embeds what has
// them, with zero values, and of strings and bytes that encode themselves, with a sample.
//
// Methods of a type's own for the codec are believed, if there is one for each way. Of an any
// nobody knows what it holds. All else is judged by what the codec does with each part of the type.
package carry

import (
	"fmt"
	"reflect"
	"strings"
)

// Format is what a codec does with types.
type Format struct {
	Codec string // its name
	Pair  string // the methods for both ways by which a type can encode itself
	Omit  string // the tag that leaves a field out

	// Methods returns the methods of its own by which a value is encoded and decoded, or none; or a
	// problem with them.
	Methods func(p Place) (*Ways, *Problem)

	// Key is Methods for the key of a map, which is not judged by its kind. Nil: keys are like
	// other values.
	Key func(p Place) (*Ways, *Problem)

	// Field tells what becomes of a field of a struct.
	Field func(f reflect.StructField) Field

	// FirstWins: of fields of one name and depth the first is encoded. Else it is the one whose
	// name comes from a tag, or none.
	FirstWins bool
}

// Place is a part of a type.
type Place struct {
	Type        reflect.Type
	Path        string // as in "User.Address.zip"; "" up to the first type with a name
	Addressable bool   // the encoder can take its address
	Found       bool   // the decoder finds methods of a pointer to it
	InKey       bool   // it is in the key of a map
}

// Problem is why a part is not carried.
type Problem struct {
	Why   string
	Cure  string
	Never bool // no value is encoded that has this part
}

// Field is what becomes of a field of a struct.
type Field struct {
	Name    string // it is encoded under
	Tagged  bool   // which comes from a tag
	Inline  bool   // its own fields are encoded in its place
	Ignored bool   // by design, as it is not data
	Problem *Problem
}

// Error is why the values of a type are not carried.
type Error struct {
	Codec, Path string
	Problem
}

func (e *Error) Error() string {
	accept := "accept the loss with LoaderOptions.AllowLoss"
	if e.Never {
		accept = "set another LoaderOptions.Codec"
	}
	return fmt.Sprintf("%s does not carry %s: %s; %s, or %s", e.Codec, e.Path, e.Why, e.Cure, accept)
}

// Check returns an *Error that names the first part of t that f does not carry there and back, or
// nil. lossy: only parts count without which there is no encoding at all.
func (f *Format) Check(t reflect.Type, lossy bool) error {
	w := &walk{Format: f, lossy: lossy, seen: make(map[Place]bool)}
	w.value(Place{Type: t, Addressable: true, Found: true})
	if w.err == nil {
		return nil
	}
	if w.err.Path == "" {
		w.err.Path = t.String()
	}
	return w.err
}

type walk struct {
	*Format
	lossy bool
	seen  map[Place]bool // without their paths
	err   *Error
}

// report notes a problem, if it is the first that counts.
func (w *walk) report(path string, p *Problem) {
	if w.err == nil && (p.Never || !w.lossy) {
		w.err = &Error{w.Codec, path, *p}
	}
}

// value walks a value.
func (w *walk) value(p Place) {
	place := p
	place.Path = ""
	if w.err != nil || w.seen[place] {
		return
	}
	w.seen[place] = true
	if p.Type.Kind() == reflect.Pointer {
		if p.InKey {
			w.report(p.Path, &Problem{Why: "a pointer in the key of a map comes back as another one", Cure: "use a key without pointers"})
			return
		}
		found := p.Type.Name() == ""
		w.value(Place{Type: p.Type.Elem(), Path: p.Path, Addressable: true, Found: found})
		return
	}
	if p.Path == "" {
		p.Path = p.Type.Name()
	}
	if p.Type.Kind() == reflect.Interface {
		if p.Type.NumMethod() > 0 {
			w.report(p.Path, &Problem{Why: fmt.Sprintf("it is an interface, %v, and nothing tells which type to decode", p.Type), Cure: "use a type that is no interface"})
		}
		return
	}
	ways, problem := w.Methods(p)
	switch {
	case problem != nil:
		w.report(p.Path, problem)
	case ways != nil:
		w.own(p, ways)
	default:
		w.kind(p)
	}
}

// kind walks a value without methods of its own.
func (w *walk) kind(p Place) {
	t := p.Type
	inner := p.Path
	if inner != "" {
		inner += "[]"
	}
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		w.report(p.Path, w.kindless(p))
	case reflect.Slice:
		w.value(Place{t.Elem(), inner, true, t.Elem().Name() != "", p.InKey})
	case reflect.Array:
		if t.Len() > 0 {
			w.value(Place{t.Elem(), inner, p.Addressable, t.Elem().Name() != "", p.InKey})
		}
	case reflect.Map:
		w.key(Place{t.Key(), inner, false, true, true})
		w.value(Place{t.Elem(), inner, false, t.Elem().Name() != "", p.InKey})
	case reflect.Struct:
		w.fields(p)
	}
}

// kindless is the problem with a type that has no encoding.
func (w *walk) kindless(p Place) *Problem {
	cure := "use another type"
	if strings.Contains(p.Path, ".") { // of a field
		cure = fmt.Sprintf("leave the field out by the tag %s and LoaderOptions.AllowLoss", w.Omit)
	}
	return &Problem{Why: fmt.Sprintf("a %v has no encoding", p.Type), Cure: cure, Never: true}
}

// key walks the key of a map.
func (w *walk) key(p Place) {
	if w.Key == nil {
		w.value(p)
		return
	}
	ways, problem := w.Key(p)
	if problem != nil {
		w.report(p.Path, problem)
	} else if ways != nil {
		w.own(p, ways)
	}
}
