package codec

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

// Custom is a codec that is not in this package. It is cacheaside.Codec: see there.
type Custom interface {
	Number() uint8
	Encode(v any) ([]byte, error)
	Decode(b []byte, v any) error
}

// Checker is a Custom that refuses types of values: those that it does not carry there and back.
type Checker interface {
	Check(t reflect.Type) error
}

// Check returns an error if a loader's values are of a type that by, nil for the default, does not
// carry there and back. A Custom that is no Checker is believed. lossy: of a codec of this module
// it returns only an error that no value escapes; of another one none.
func Check(t reflect.Type, by Custom, lossy bool) error {
	switch by := by.(type) {
	case nil:
		if isRaw(t) {
			return nil
		}
		return carry.JSON.Check(t, lossy)
	case Builtin:
		return by.check(t, lossy)
	case Native:
		return by.CheckNative(t, Lossy(lossy))
	case Checker:
		if !lossy {
			return by.Check(t)
		}
	}
	return nil
}

func isRaw(t reflect.Type) bool {
	return t == reflect.TypeFor[string]() || t == reflect.TypeFor[[]byte]()
}

// Native is a codec of this module in a package of its own, so that only the programs that use it
// link it. Its number is below 8. It is always given a *V, also where V is a pointer, so that it
// writes a nil in its own way; and the bound, so that it can stop when it has been reached.
type Native interface {
	Custom
	EncodeNative(v any, most Bytes) ([]byte, error)
	DecodeNative(b []byte, v any) error
	CheckNative(t reflect.Type, lossy Lossy) error
}

// Lossy is whether a codec may lose parts of values.
type Lossy bool

// Bytes is a length. No package of another module can name it, and so none has a Native.
type Bytes int

// Builtin is a codec of this package as a Custom: JSON or Binary, or Raw for its own use.
type Builtin ID

// Number is the codec's ID.
func (b Builtin) Number() uint8 { return uint8(b) }

func (b Builtin) String() string { return ID(b).String() }

// Check is for those who wrap the codec: see Checker.
func (b Builtin) Check(t reflect.Type) error { return b.check(t, false) }

func (b Builtin) check(t reflect.Type, lossy bool) error {
	switch ID(b) {
	case JSON:
		return carry.JSON.Check(t, lossy)
	case Binary:
		return carry.Binary.Check(t, lossy)
	}
	return nil
}

// Encode encodes what v points to. The error of a value that JSON would change is NotCarried.
func (b Builtin) Encode(v any) ([]byte, error) {
	if b == Builtin(JSON) {
		encoded, err := json.Marshal(v)
		if of := reflect.ValueOf(v); err == nil && of.IsValid() {
			err = exactOf(of.Type()).check(of, encoded)
		}
		if err != nil {
			return nil, err
		}
		return encoded, nil
	}
	m, ok := v.(encoding.BinaryMarshaler)
	if !ok {
		return nil, fmt.Errorf("codec: no MarshalBinary in %T", v)
	}
	encoded, err := m.MarshalBinary()
	return bytes.Clone(encoded), err // it may be a buffer that is used again
}

// Decode decodes into what v points to.
func (b Builtin) Decode(p []byte, v any) error {
	if b == Builtin(JSON) {
		return json.Unmarshal(p, v)
	}
	u, ok := v.(encoding.BinaryUnmarshaler)
	if !ok {
		return fmt.Errorf("codec: no UnmarshalBinary in %T", v)
	}
	return u.UnmarshalBinary(p)
}

func encodeCustom[V any](c Custom, id ID, v *V, pointer bool, maxBytes int) (p Payload, err error) {
	p.Codec = id
	if n, ok := c.(Native); ok {
		p.Bytes, err = n.EncodeNative(v, Bytes(maxBytes))
		return p, err
	}
	m, ok := target(v, pointer)
	if !ok {
		return null(), nil
	}
	p.Bytes, err = c.Encode(m)
	return p, err
}

func decodeCustom[V any](c Custom, b []byte, v *V, pointer bool) error {
	if n, ok := c.(Native); ok {
		return n.DecodeNative(b, v)
	}
	return c.Decode(b, filled(v, pointer))
}

// target is what v is encoded from: a pointer, v or the V itself. It answers false for a V that is
// nil.
func target[V any](v *V, pointer bool) (any, bool) {
	if !pointer {
		return v, true
	}
	return *v, !reflect.ValueOf(v).Elem().IsNil()
}

// filled is what v is decoded into: a pointer, v or the V itself, which is made.
func filled[V any](v *V, pointer bool) any {
	if !pointer {
		return v
	}
	reflect.ValueOf(v).Elem().Set(reflect.New(reflect.TypeFor[V]().Elem()))
	return *v
}

// null is a nil where the codec has none.
func null() Payload { return Payload{Codec: JSON, Bytes: []byte("null")} }

// encodeRaw encodes a *string or a *[]byte.
func encodeRaw(v any, maxBytes int) (Payload, error) {
	switch v := v.(type) {
	case *string:
		if len(*v) > maxBytes {
			return Payload{}, ErrTooLarge // before it is copied
		}
		return Payload{Codec: Raw, Bytes: []byte(*v)}, nil
	case *[]byte:
		if *v != nil {
			return Payload{Codec: Raw, Bytes: *v}, nil
		}
	}
	return null(), nil
}

// decodeRaw decodes into a *string or a *[]byte, which is empty then but never nil.
func decodeRaw(b []byte, v any) {
	switch v := v.(type) {
	case *string:
		*v = string(b)
	case *[]byte:
		*v = slices.Clip(b) // so that an append to it writes nowhere else
		if b == nil {
			*v = []byte{}
		}
	}
}
