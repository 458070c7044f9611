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

// Custom is a codec outside this package. See cacheaside.Codec, which is the same interface.
type Custom interface {
	Number() uint8
	Encode(v any) ([]byte, error)
	Decode(b []byte, v any) error
}

// Checker is a Custom that refuses types whose values it does not preserve. It is the same as
// cacheaside.CodecChecker.
type Checker interface {
	Check(t reflect.Type) error
}

// Check returns an error if by does not preserve values of a loader's type; by is nil for the
// default. A Custom that is not a Checker is trusted. With lossy, Check returns only errors of
// this module's codecs that concern all values of the type.
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

// Native is a codec of this module in a separate package, so that only programs that use it link
// it. Its number is below 8. It always receives a *V, even if V is a pointer, so that it encodes
// nil in its own way. It also receives the size limit, so that it can stop there.
type Native interface {
	Custom
	EncodeNative(v any, most Bytes) ([]byte, error)
	DecodeNative(b []byte, v any) error
	CheckNative(t reflect.Type, lossy Lossy) error
}

// Lossy reports whether a codec may lose parts of values.
type Lossy bool

// Bytes is a length. Other modules cannot name this type, so none can implement Native.
type Bytes int

// Builtin is a codec of this package as a Custom: JSON or Binary, or internally Raw.
type Builtin ID

// Number returns the codec's ID.
func (b Builtin) Number() uint8 { return uint8(b) }

func (b Builtin) String() string { return ID(b).String() }

// Check is for Customs that wrap the codec: see Checker.
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

// Encode encodes the value that v points to. A value that JSON would change is a NotCarried
// error.
func (b Builtin) Encode(v any) ([]byte, error) {
	if b == Builtin(JSON) {
		encoded, err := json.Marshal(v)
		if value := reflect.ValueOf(v); err == nil && value.IsValid() {
			err = exactOf(value.Type()).check(value, encoded)
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
	return bytes.Clone(encoded), err // the method may reuse its buffer
}

// Decode decodes into the value that v points to.
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

// target returns the pointer that is encoded: v, or the V itself. It reports false if V is nil.
func target[V any](v *V, pointer bool) (any, bool) {
	if !pointer {
		return v, true
	}
	return *v, !reflect.ValueOf(v).Elem().IsNil()
}

// filled returns the pointer that is decoded into: v, or a new V.
func filled[V any](v *V, pointer bool) any {
	if !pointer {
		return v
	}
	reflect.ValueOf(v).Elem().Set(reflect.New(reflect.TypeFor[V]().Elem()))
	return *v
}

// null is the encoding of nil for codecs without one.
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

// decodeRaw decodes into a *string or a *[]byte. An empty result is not nil.
func decodeRaw(b []byte, v any) {
	switch v := v.(type) {
	case *string:
		*v = string(b)
	case *[]byte:
		*v = slices.Clip(b) // so that an append does not write into the payload
		if b == nil {
			*v = []byte{}
		}
	}
}
