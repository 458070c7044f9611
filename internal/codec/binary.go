package codec

import (
	"bytes"
	"encoding"
	"reflect"
)

var (
	marshaler   = reflect.TypeFor[encoding.BinaryMarshaler]()
	unmarshaler = reflect.TypeFor[encoding.BinaryUnmarshaler]()
)

// roundTripsBinary tells whether a t can be marshaled and unmarshaled: by methods of t or *t. An
// interface cannot: nothing says which type to make.
func roundTripsBinary(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		return t.Implements(marshaler) && t.Implements(unmarshaler)
	}
	p := reflect.PointerTo(t) // has the methods of t too, unless t is an interface
	return p.Implements(marshaler) && p.Implements(unmarshaler)
}

func encodeBinary[V any](v *V, pointer bool) (Payload, error) {
	m, ok := target(v, pointer)
	if !ok {
		return null(), nil
	}
	b, err := m.(encoding.BinaryMarshaler).MarshalBinary()
	return Payload{Codec: Binary, Bytes: bytes.Clone(b)}, err // it may be a buffer that is used again
}

func decodeBinary[V any](b []byte, v *V, pointer bool) error {
	return filled(v, pointer).(encoding.BinaryUnmarshaler).UnmarshalBinary(b)
}
