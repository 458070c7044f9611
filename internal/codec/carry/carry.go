// Package carry reports whether a codec preserves the values of a type. It inspects the type once.
// It calls methods of only two kinds of types. One is a struct that embeds a type with such
// methods: they are called on zero values. The other is a string or byte slice that encodes itself:
// its methods are called on a sample.
//
// A type's own pair of methods for the codec is trusted. The content of an interface is unknown.
// Each other part of the type is judged by how the codec treats it.
package carry

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Format describes how a codec treats types.
type Format struct {
	Codec string // its name
	Pair  string // the pair of methods of a type that encode and decode it
	Omit  string // the tag that omits a field

	// Methods returns the methods of a value that encode and decode it, or none, or a problem with
	// them.
	Methods func(p Place) (*Ways, *Problem)

	// Key is like Methods, for the key of a map, which is not judged by its kind. If Key is nil,
	// keys are treated like other values.
	Key func(p Place) (*Ways, *Problem)

	// Map returns a problem with a map, apart from those of its keys and values. It may be nil.
	Map func(p Place) *Problem

	// Field returns how a field of a struct is encoded.
	Field func(f reflect.StructField) Field

	// FirstWins reports whether, of fields with the same name and depth, the first is encoded.
	// Otherwise it is the one whose name comes from a tag, or none.
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

// Problem is the reason why a part is not preserved.
type Problem struct {
	Reason string
	Cure   string
	Never  bool // no value with this part can be encoded
	Mixed  bool // values come back, but not between programs that two releases of Go have built
}

// Field describes how a field of a struct is encoded.
type Field struct {
	Name    string // the encoded name
	Tagged  bool   // the name comes from a tag
	Inline  bool   // its fields are encoded in its place
	Ignored bool   // intentionally, as it is not data
	Problem *Problem
}

// Error is the reason why the values of a type are not preserved.
type Error struct {
	Codec, Path string
	Problem
}

func (e *Error) Error() string {
	accept := "accept the loss with LoaderOptions.AllowLoss"
	if e.Never {
		accept = "set another LoaderOptions.Codec"
	}
	return fmt.Sprintf("%s does not carry %s: %s; %s, or %s", e.Codec, e.Path, e.Reason, e.Cure, accept)
}

// Check returns an *Error that names the first part of t that f does not preserve, or nil. With
// lossy, only parts that prevent any encoding count.
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

// report records a problem, if it is the first that counts.
func (w *walk) report(path string, p *Problem) {
	if w.err == nil && (p.Never || !w.lossy) {
		w.err = &Error{w.Codec, path, *p}
	}
}

// value inspects a value.
func (w *walk) value(p Place) {
	place := p
	place.Path = ""
	if w.err != nil || w.seen[place] {
		return
	}
	w.seen[place] = true
	if p.Type.Kind() == reflect.Pointer {
		if p.InKey {
			w.report(p.Path, &Problem{Reason: "a pointer in the key of a map comes back as another one",
				Cure: "use a key without pointers"})
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
			w.report(p.Path, &Problem{Reason: fmt.Sprintf(
				"it is an interface, %v, and the decoder cannot know which type to create", p.Type),
				Cure: "use a type that is no interface"})
		}
		return
	}
	ways, problem := w.Methods(p)
	switch {
	case problem != nil:
		w.report(p.Path, problem)
	case ways != nil:
		w.selfEncoded(p, ways)
	default:
		w.kind(p)
	}
}

// kind inspects a value without methods of its own.
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
		if w.Map != nil {
			if problem := w.Map(p); problem != nil {
				w.report(p.Path, problem)
			}
		}
		w.key(Place{t.Key(), inner, false, true, true})
		w.value(Place{t.Elem(), inner, false, t.Elem().Name() != "", p.InKey})
	case reflect.Struct:
		w.fields(p)
	}
}

// kindless returns the problem of a type without an encoding.
func (w *walk) kindless(p Place) *Problem {
	cure := "use another type"
	if strings.Contains(p.Path, ".") { // of a field
		cure = fmt.Sprintf("leave the field out by the tag %s and LoaderOptions.AllowLoss", w.Omit)
	}
	return &Problem{Reason: fmt.Sprintf("a %v has no encoding", p.Type), Cure: cure, Never: true}
}

// key inspects the key of a map.
func (w *walk) key(p Place) {
	if w.Key == nil {
		w.value(p)
		return
	}
	ways, problem := w.Key(p)
	if problem != nil {
		w.report(p.Path, problem)
	} else if ways != nil {
		w.selfEncoded(p, ways)
	}
}

// field is a field of a struct, or of an embedded struct. It is encoded unless another field has
// its name.
type field struct {
	Field
	place Place
	depth int
}

// fields inspects the fields of a struct.
func (w *walk) fields(p Place) {
	var found []field
	w.collect(p, nil, &found)
	for i := range found {
		f := &found[i]
		if w.hidden(i, found) {
			w.lose(f.place.Path, f.place.Type, &Problem{
				Reason: fmt.Sprintf("another field is named %q, too", f.Name),
				Cure:   "give it a name of its own by its tag",
			})
			continue
		}
		w.value(f.place)
	}
}

// lose records that a field is not preserved, unless it cannot hold data.
func (w *walk) lose(path string, t reflect.Type, p *Problem) {
	if t.Size() > 0 {
		w.report(path, p)
	}
}

// hidden reports whether the i-th field is not encoded because another field has its name.
func (w *walk) hidden(i int, all []field) bool {
	for j := range all {
		if i != j && all[i].Name == all[j].Name && !w.wins(&all[i], &all[j], i < j) {
			return true
		}
	}
	return false
}

// wins reports whether f is encoded instead of o, which has the same name.
func (w *walk) wins(f, o *field, first bool) bool {
	switch {
	case f.depth != o.depth:
		return f.depth < o.depth
	case w.FirstWins:
		return first
	default:
		return f.Tagged && !o.Tagged
	}
}

// collect appends the encoded fields of a struct, including those of embedded structs. in
// contains the enclosing types.
func (w *walk) collect(p Place, in []reflect.Type, found *[]field) {
	in = append(slices.Clip(in), p.Type)
	for sf := range p.Type.Fields() {
		if sf.Name == "_" {
			continue
		}
		place := Place{sf.Type, join(p.Path, sf.Name), p.Addressable, sf.Type.Name() != "", p.InKey}
		f := w.Field(sf)
		switch {
		case f.Ignored:
		case f.Problem != nil:
			w.lose(place.Path, sf.Type, f.Problem)
		case !f.Inline:
			*found = append(*found, field{f, place, len(in)})
		default:
			w.embed(place, in, found)
		}
	}
}

// embed appends the fields of an embedded struct, or of an embedded pointer to one.
func (w *walk) embed(place Place, in []reflect.Type, found *[]field) {
	pointer := place.Type.Kind() == reflect.Pointer
	if pointer && place.InKey {
		w.value(place)
		return
	}
	if pointer {
		place.Type, place.Addressable = place.Type.Elem(), true
	}
	if slices.Contains(in, place.Type) { // recursive by a pointer
		w.report(place.Path, &Problem{Reason: fmt.Sprintf(
			"a %v is embedded in itself, and its fields have the same names", place.Type),
			Cure: "give the field a name"})
		return
	}
	before := len(*found)
	w.collect(place, in, found)
	if pointer && len(*found) == before {
		w.report(place.Path, &Problem{Reason: "no field of it is encoded, so it comes back nil",
			Cure: "embed it without a pointer"})
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
