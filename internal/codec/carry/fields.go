package carry

import (
	"fmt"
	"reflect"
	"slices"
)

// field is a field of a struct, or of one that it embeds, that is encoded unless another one has
// its name.
type field struct {
	Field
	at    Place
	depth int
}

// fields walks a struct by its fields.
func (w *walk) fields(p Place) {
	var found []field
	w.collect(p, nil, &found)
	for i := range found {
		f := &found[i]
		if w.hidden(i, found) {
			w.lose(f.at.Path, f.at.Type, &Problem{
				Why:  fmt.Sprintf("another field is named %q, too", f.Name),
				Cure: "give it a name of its own by its tag",
			})
			continue
		}
		w.value(f.at)
	}
}

// lose notes that a field is not carried, unless there is nothing in it.
func (w *walk) lose(path string, t reflect.Type, p *Problem) {
	if t.Size() > 0 {
		w.report(path, p)
	}
}

// hidden tells whether the i-th field is not encoded, as another one has its name.
func (w *walk) hidden(i int, all []field) bool {
	for j := range all {
		if i != j && all[i].Name == all[j].Name && !w.wins(&all[i], &all[j], i < j) {
			return true
		}
	}
	return false
}

// wins tells whether f is encoded, and not o, which has the same name.
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

// collect appends the fields of a struct that are encoded, those of embedded structs too, whose
// types are in.
func (w *walk) collect(p Place, in []reflect.Type, found *[]field) {
	in = append(slices.Clip(in), p.Type)
	for i := range p.Type.NumField() {
		sf := p.Type.Field(i)
		if sf.Name == "_" {
			continue
		}
		at := Place{sf.Type, join(p.Path, sf.Name), p.Addressable, sf.Type.Name() != "", p.InKey}
		f := w.Field(sf)
		switch {
		case f.Ignored:
		case f.Problem != nil:
			w.lose(at.Path, sf.Type, f.Problem)
		case !f.Inline:
			*found = append(*found, field{f, at, len(in)})
		default:
			w.embed(at, in, found)
		}
	}
}

// embed appends the fields of a struct that is embedded, or a pointer to one.
func (w *walk) embed(at Place, in []reflect.Type, found *[]field) {
	pointer := at.Type.Kind() == reflect.Pointer
	if pointer && at.InKey {
		w.value(at)
		return
	}
	if pointer {
		at.Type, at.Addressable = at.Type.Elem(), true
	}
	if slices.Contains(in, at.Type) { // by a pointer
		w.report(at.Path, &Problem{Why: fmt.Sprintf("a %v is embedded in itself, and its fields have the same names", at.Type), Cure: "give the field a name"})
		return
	}
	before := len(*found)
	w.collect(at, in, found)
	if pointer && len(*found) == before {
		w.report(at.Path, &Problem{Why: "no field of it is encoded, so it comes back nil", Cure: "embed it without a pointer"})
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
