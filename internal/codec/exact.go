package codec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// NotCarried is the error of a value that JSON would silently change: a time whose zone offset is
// not a whole minute, a string that is not UTF-8, an empty json.Number. It names a field, and
// shows nothing of the value.
type NotCarried string

func (n NotCarried) Error() string { return string(n) }

// exact finds the parts of a type's values that JSON would change. It is created once per type.
type exact struct {
	name string // of the type
	root *probe
}

// probe describes the path to the times and numbers in a value.
type probe struct {
	leads  bool                                  // it leads to some; else the value is not read
	is     func(v reflect.Value) (reason string) // checks a time or number; nil: it leads to some
	fields []probedField
	key    *probe // of a map
	elem   *probe // of the elements, or of the pointer's target
}

type probedField struct {
	index int
	name  string
	omit  bool // a zero value is omitted, and decoded as it was
	*probe
}

var exacts sync.Map // by reflect.Type

func exactOf(t reflect.Type) *exact {
	if known, ok := exacts.Load(t); ok {
		return known.(*exact)
	}
	m := prober{probes: make(map[reflect.Type]*probe)}
	e := &exact{name: t.String(), root: m.probe(t)}
	m.follow()
	known, _ := exacts.LoadOrStore(t, e)
	return known.(*exact)
}

// check returns a NotCarried error if encoded, the JSON of v, does not represent the same value.
func (e *exact) check(v reflect.Value, encoded []byte) error {
	path, reason := e.root.find(v)
	switch {
	case reason != "":
	case !utf8.Valid(encoded):
		reason = "its JSON is not UTF-8"
	case hasReplacement(encoded) && replaced(v, 0):
		reason = "a string in it is not UTF-8"
	default:
		return nil
	}
	return NotCarried(fmt.Sprintf("JSON does not carry a value of %s%s: %s", e.name, path, reason))
}

// find returns the path and the problem of the first part that JSON changes, if any.
func (p *probe) find(v reflect.Value) (path, reason string) {
	switch {
	case !p.leads:
		return "", ""
	case p.is != nil:
		return "", p.is(v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return p.elem.find(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if path, reason = p.elem.find(v.Index(i)); reason != "" {
				return "[]" + path, reason
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if p.key.leads {
				path, reason = p.key.find(it.Key())
			}
			if reason == "" && p.elem.leads {
				path, reason = p.elem.find(it.Value())
			}
			if reason != "" {
				return "[]" + path, reason
			}
		}
	case reflect.Struct:
		for _, f := range p.fields {
			value := v.Field(f.index)
			if !f.leads || f.omit && value.IsZero() {
				continue
			}
			if path, reason = f.find(value); reason != "" {
				return "." + f.name + path, reason
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
	var t time.Time
	if v.CanAddr() {
		t = *v.Addr().Interface().(*time.Time) // without an allocation
	} else {
		t = v.Interface().(time.Time)
	}
	if _, offset := t.Zone(); offset%60 != 0 {
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

// prober creates the probes of a type and of the types in it.
type prober struct {
	probes map[reflect.Type]*probe
}

// probe returns the probe of t and the fields that JSON encodes. Field leads is set later: see
// follow.
func (p *prober) probe(t reflect.Type) *probe {
	if node, ok := p.probes[t]; ok {
		return node
	}
	node := &probe{}
	p.probes[t] = node
	switch k := t.Kind(); {
	case t == momentType:
		node.is = offMinute
	case t == numberType:
		node.is = noNumber
	case k == reflect.Struct:
		for f := range t.Fields() {
			tag := f.Tag.Get("json")
			if tag == "-" || !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct) {
				continue
			}
			options := strings.Split(tag, ",")[1:]
			omit := slices.Contains(options, "omitempty") || slices.Contains(options, "omitzero")
			node.fields = append(node.fields, probedField{f.Index[0], f.Name, omit, p.probe(f.Type)})
		}
	case k == reflect.Map:
		node.key, node.elem = p.probe(t.Key()), p.probe(t.Elem())
	case k == reflect.Pointer, k == reflect.Slice, k == reflect.Array:
		node.elem = p.probe(t.Elem())
	}
	return node
}

// follow sets leads in the probes that lead to a time or a number. Types may be recursive, so it
// repeats until nothing changes.
func (p *prober) follow() {
	leads := func(node *probe) bool { return node != nil && node.leads }
	for again := true; again; {
		again = false
		for _, node := range p.probes {
			if !node.leads && (node.is != nil || leads(node.key) || leads(node.elem) ||
				slices.ContainsFunc(node.fields, func(f probedField) bool { return f.leads })) {
				node.leads, again = true, true
			}
		}
	}
}
