package codec

import (
	"fmt"
	"reflect"
	"time"

	"github.com/ugorji/go/codec"
)

var selfer = reflect.TypeFor[codec.Selfer]()

// checkMsgPack refuses the types that MsgPack would lose without a word: channels, functions, and what keeps its state in unexported
// fields and has no MarshalBinary, as a big.Int. (JSON has such a value's MarshalText.) What an interface holds is not known here.
func checkMsgPack(t reflect.Type) error {
	if lost := findLost(t, map[reflect.Type]bool{}); lost != nil {
		return fmt.Errorf("codec: MsgPack would lose the %v in %v", lost, t)
	}
	return nil
}

// findLost returns a type in t whose values MsgPack would lose, or nil.
func findLost(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	if seen[t] || t == reflect.TypeFor[time.Time]() || t.Kind() != reflect.Pointer && (roundTripsBinary(t) || reflect.PointerTo(t).Implements(selfer)) {
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
