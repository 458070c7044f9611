package msgpack

import (
	"encoding"
	"fmt"
	"reflect"
	"time"

	"github.com/ugorji/go/codec"
)

var (
	selfer      = reflect.TypeFor[codec.Selfer]()
	marshaler   = reflect.TypeFor[encoding.BinaryMarshaler]()
	unmarshaler = reflect.TypeFor[encoding.BinaryUnmarshaler]()
)

// Check refuses the types that MessagePack would lose without a word: channels, functions, and what
// keeps its state in unexported fields and has no MarshalBinary, as a big.Int. (JSON has such a
// value's MarshalText.) What an interface holds is not known here.
func (messagePack) Check(t reflect.Type) error {
	if lost := findLost(t, map[reflect.Type]bool{}); lost != nil {
		return fmt.Errorf("msgpack: MessagePack would lose the %v in %v", lost, t)
	}
	return nil
}

// findLost returns a type in t whose values MessagePack would lose, or nil.
func findLost(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	if seen[t] || t == reflect.TypeFor[time.Time]() || t.Kind() != reflect.Pointer && carriesItself(reflect.PointerTo(t)) {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return t
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return findLost(t.Elem(), seen)
	case reflect.Map:
		if lost := findLost(t.Key(), seen); lost != nil {
			return lost
		}
		return findLost(t.Elem(), seen)
	case reflect.Struct:
		return findLostField(t, seen)
	}
	return nil
}

// carriesItself tells whether what p points to has methods of its own for MessagePack.
func carriesItself(p reflect.Type) bool {
	return p.Implements(selfer) || p.Implements(marshaler) && p.Implements(unmarshaler)
}

func findLostField(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	visible := t.NumField() == 0
	for f := range t.Fields() {
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		visible = true
		if f.Tag.Get("msgpack") == "-" || f.Tag.Get("codec") == "-" || f.Tag.Get("json") == "-" {
			continue
		}
		if lost := findLost(f.Type, seen); lost != nil {
			return lost
		}
	}
	if !visible {
		return t
	}
	return nil
}
