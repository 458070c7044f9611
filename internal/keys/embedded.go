package keys

import (
	"encoding"
	"fmt"
	"reflect"
	"time"
	"unsafe"
)

// leavesOut returns an error if K has its MarshalText from a type that it embeds, such as a
// time.Time, and has other fields: keys that differ in those would have one text. Reflection does
// not show whether a method is an embedded type's. So zero keys are marshaled, with other fields
// set.
func leavesOut[K comparable]() error {
	t := reflect.TypeFor[K]()
	if t.Kind() != reflect.Struct || !t.Implements(textMarshaler) {
		return nil
	}
	for i := range t.NumField() {
		inner := t.Field(i)
		if !inner.Anonymous || !reflect.PointerTo(inner.Type).Implements(textMarshaler) {
			continue
		}
		var key K
		v := reflect.ValueOf(&key).Elem()
		whole, own := textOf(v), textOf(reflect.New(inner.Type).Elem())
		if whole == nil || own == nil || *whole != *own {
			continue
		}
		if lost := unmarked(v, i, *whole); lost != "" {
			return fmt.Errorf("keys of type %s have the MarshalText of the embedded %s, which leaves out the field %s: give the type a MarshalText of its own, or set LoaderOptions.Key", t, inner.Type, lost)
		}
	}
	return nil
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

// unmarked returns the name of a field of v, other than the one with this index, if the text of v
// is the same whatever these fields are.
func unmarked(v reflect.Value, index int, text string) (lost string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if i == index || f.Name == "_" || f.Type.Size() == 0 {
			continue
		}
		of := reflect.NewAt(f.Type, unsafe.Pointer(v.Field(i).UnsafeAddr())).Elem() // it may not be exported
		if !set(of) {
			continue
		}
		if changed := textOf(v); changed == nil || *changed != text {
			return ""
		}
		lost = f.Name
	}
	return lost
}

// set gives v a value other than zero, and reports whether it knows one.
func set(v reflect.Value) bool {
	switch k := v.Kind(); {
	case v.Type() == moment:
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
	case k == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.CanFloat():
		v.SetFloat(1)
	case k == reflect.String:
		v.SetString("1")
	case k == reflect.Array:
		return v.Len() > 0 && set(v.Index(0))
	case k == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && set(f) {
				return true
			}
		}
		return false
	default:
		return false
	}
	return true
}

// textOf returns the text of v, which is addressable; nil if it has none.
func textOf(v reflect.Value) (text *string) {
	defer func() {
		if recover() != nil {
			text = nil
		}
	}()
	m, ok := v.Addr().Interface().(encoding.TextMarshaler)
	if !ok {
		return nil
	}
	b, err := m.MarshalText()
	if err != nil {
		return nil
	}
	s := string(b)
	return &s
}
