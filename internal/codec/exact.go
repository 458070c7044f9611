package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// NotCarried is the error of a value that JSON would change without saying so: a time whose zone is
// seconds off a whole minute, a string that is not UTF-8, an empty json.Number. It names a field,
// and shows nothing of the value.
type NotCarried string

func (e NotCarried) Error() string { return string(e) }

// exact finds in the values of a type what JSON would change. It is made once for each type.
type exact struct {
	name   string // of the type
	root   *probe // nil: there is no time and no json.Number in it
	quoted bool   // it has a field that is quoted twice, by the option "string" of its tag
}

// probe leads to the times and numbers in a value.
type probe struct {
	is     func(v reflect.Value) (why string) // of a time or number; nil: it leads to some
	fields []probedField
	key    *probe // of a map
	elem   *probe // of what has elements, or of what is pointed to
}

type probedField struct {
	index int
	name  string
	omit  bool // a zero is left out, and comes back as it was
	*probe
}

var exacts sync.Map // by reflect.Type

func exactOf(t reflect.Type) *exact {
	if known, ok := exacts.Load(t); ok {
		return known.(*exact)
	}
	e := &exact{name: t.String(), root: make(prober).probe(t)}
	_, e.quoted = leads(t)
	known, _ := exacts.LoadOrStore(t, e)
	return known.(*exact)
}

var replaced = []byte(`\ufffd`)

// check returns a NotCarried error if encoded, the JSON of v, does not stand for the same value.
func (e *exact) check(v reflect.Value, encoded []byte) error {
	if e.root != nil {
		if path, why := e.root.find(v); why != "" {
			return NotCarried(fmt.Sprintf("JSON does not carry a value of %s%s: %s", e.name, path, why))
		}
	}
	for rest := encoded; ; {
		i := bytes.Index(rest, replaced)
		if i < 0 {
			return nil
		}
		if slashes := len(rest[:i]) - len(bytes.TrimRight(rest[:i], `\`)); slashes%2 == 0 || e.quoted {
			return NotCarried(fmt.Sprintf("JSON does not carry a value of %s: a string in it is not UTF-8", e.name))
		}
		rest = rest[i+len(replaced):]
	}
}

// find returns the path and the problem of a part that JSON changes, or none.
func (p *probe) find(v reflect.Value) (path, why string) {
	if p.is != nil {
		return "", p.is(v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return p.elem.find(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if path, why = p.elem.find(v.Index(i)); why != "" {
				return "[]" + path, why
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if p.key != nil {
				path, why = p.key.find(it.Key())
			}
			if why == "" && p.elem != nil {
				path, why = p.elem.find(it.Value())
			}
			if why != "" {
				return "[]" + path, why
			}
		}
	case reflect.Struct:
		for _, f := range p.fields {
			of := v.Field(f.index)
			if f.omit && of.IsZero() {
				continue
			}
			if path, why = f.find(of); why != "" {
				return "." + f.name + path, why
			}
		}
	}
	return "", ""
}

var (
	momentType = reflect.TypeFor[time.Time]()
	numberType = reflect.TypeFor[json.Number]()
)

func offMinute(v reflect.Value) string {
	var at time.Time
	if v.CanAddr() {
		at = *v.Addr().Interface().(*time.Time) // without an allocation
	} else {
		at = v.Interface().(time.Time)
	}
	if _, offset := at.Zone(); offset%60 != 0 {
		return "the offset of its zone has seconds"
	}
	return ""
}

func noNumber(v reflect.Value) string {
	if v.Len() == 0 {
		return "an empty json.Number comes back as 0"
	}
	return ""
}

// prober makes the probes of a type.
type prober map[reflect.Type]*probe

// leads reports whether there is a time or a json.Number in a t, as far as JSON goes by its fields,
// and whether a field of it is quoted twice.
func leads(t reflect.Type) (yes, quoted bool) {
	seen := make(map[reflect.Type]bool)
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(t.Elem())
		case reflect.Map:
			walk(t.Key())
			walk(t.Elem())
		case reflect.Struct:
			yes = yes || t == momentType
			for f := range t.Fields() {
				if options, skip := fieldTag(f); !skip {
					quoted = quoted || slices.Contains(options, "string")
					walk(f.Type)
				}
			}
		default:
			yes = yes || t == numberType
		}
	}
	walk(t)
	return yes, quoted
}

// fieldTag returns the options in the tag of a field, and whether JSON skips the field.
func fieldTag(f reflect.StructField) (options []string, skip bool) {
	tag := f.Tag.Get("json")
	return strings.Split(tag, ",")[1:], tag == "-" || !f.IsExported() && !(f.Anonymous && f.Type.Kind() == reflect.Struct)
}

// probe returns the probe of a t; nil: nothing in it has to be looked at.
func (m prober) probe(t reflect.Type) *probe {
	if p, ok := m[t]; ok {
		return p
	}
	if yes, _ := leads(t); !yes {
		return nil
	}
	p := &probe{}
	m[t] = p
	switch {
	case t == momentType:
		p.is = offMinute
	case t == numberType:
		p.is = noNumber
	case t.Kind() == reflect.Struct:
		for f := range t.Fields() {
			options, skip := fieldTag(f)
			if skip {
				continue
			}
			if of := m.probe(f.Type); of != nil {
				omit := slices.Contains(options, "omitempty") || slices.Contains(options, "omitzero")
				p.fields = append(p.fields, probedField{f.Index[0], f.Name, omit, of})
			}
		}
	case t.Kind() == reflect.Map:
		p.key, p.elem = m.probe(t.Key()), m.probe(t.Elem())
	default:
		p.elem = m.probe(t.Elem())
	}
	return p
}
