// Package codec encodes a value as the payload of a Redis entry, and decodes it.
//
// An entry records which codec wrote it. Every process can read JSON, Binary and Raw, regardless
// of the codec that it writes with. Only a process that has another codec can read that codec's
// entries. Lengths in a payload are checked before they are used: a few bytes cannot make the
// decoders of this module allocate gigabytes or overflow the stack, which would crash the
// process.
package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/klauspost/compress/s2"

	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

// ID is the number of a codec in an entry, in 4 bits. This module uses 1 to 7, and its users 8 to
// 15. IDs are stored in entries: never renumber them.
type ID uint8

// The codecs of this module; 0 is the default one, Raw or JSON.
const (
	JSON    ID = 1 // encoding/json
	MsgPack ID = 2 // MessagePack: package msgpack
	Binary  ID = 3 // encoding.BinaryMarshaler and BinaryUnmarshaler
	Raw     ID = 4 // a string or []byte as it is

	firstOfUsers ID = 8
	lastOfUsers  ID = 15
)

func (i ID) String() string {
	switch i {
	case JSON:
		return "JSON"
	case MsgPack:
		return "MsgPack"
	case Binary:
		return "Binary"
	case Raw:
		return "Raw"
	}
	return fmt.Sprintf("codec %d", uint8(i))
}

// A Payload is an encoded value.
type Payload struct {
	Codec      ID
	Compressed bool
	Bytes      []byte // may share memory with the value
}

// A Codec encodes and decodes values of one type. It is immutable, and safe for concurrent use.
type Codec[V any] struct {
	id            ID     // of the codec that it writes with
	custom        Custom // the codec with that ID; nil: one of this package
	compressAbove int
	maxBytes      int
	caught        func(any) error
	raw           bool   // V is string or []byte
	pointer       bool   // V is a pointer
	binary        bool   // V supports Binary; interfaces do not, because nothing states which type to create
	exact         *exact // finds values that JSON would change; nil: such values are accepted
}

// Lossy returns a Codec that also encodes values that JSON changes.
func (c *Codec[V]) Lossy() *Codec[V] {
	lossy := *c
	lossy.exact = nil
	return &lossy
}

// New returns a Codec that writes with c. If c is nil, it writes Raw if V is exactly string or
// []byte, else JSON. Binary is never a default: a struct that embeds a time.Time inherits its
// MarshalBinary, and would lose its other fields. (It inherits MarshalJSON as well.)
//
// Payloads longer than compressAbove bytes are compressed if that makes them smaller; 0 disables
// compression. maxBytes limits a payload before compression and after decompression. caught
// converts a panic in a value's own methods, or in c, into an error; if it is nil, the error
// shows the type of the recovered value.
func New[V any](c Custom, compressAbove, maxBytes int, caught func(recovered any) error) (*Codec[V], error) {
	t := reflect.TypeFor[V]()
	codec := &Codec[V]{
		compressAbove: compressAbove,
		maxBytes:      maxBytes,
		caught:        caught,
		raw:           isRaw(t),
		pointer:       t.Kind() == reflect.Pointer,
		binary:        t.Kind() != reflect.Interface && carry.BinaryWays(t) != nil,
		exact:         exactOf(t),
	}
	if caught == nil {
		codec.caught = func(recovered any) error { return fmt.Errorf("codec: panic of type %T", recovered) }
	}
	switch {
	case compressAbove < 0:
		return nil, fmt.Errorf("codec: compressAbove %d: negative", compressAbove)
	case maxBytes <= 0:
		return nil, fmt.Errorf("codec: maxBytes %d: at least 1", maxBytes)
	}
	if err := codec.set(c); err != nil {
		return nil, err
	}
	return codec, nil
}

// set selects the codec to write with.
func (c *Codec[V]) set(by Custom) error {
	switch by := by.(type) {
	case nil:
		c.id = JSON
		if c.raw {
			c.id = Raw
		}
		return nil
	case Builtin:
		if c.id = ID(by); c.id == Binary {
			c.custom = by
		}
		return c.reads(c.id)
	}
	if v := reflect.ValueOf(by); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("a nil %T; for the default leave it nil", by)
	}
	c.id, c.custom = ID(by.Number()), by
	if _, native := by.(Native); !native && (c.id < firstOfUsers || c.id > lastOfUsers) {
		return fmt.Errorf("the Number of %T is %d: from %d to %d", by, uint8(c.id), uint8(firstOfUsers),
			uint8(lastOfUsers))
	}
	return nil
}

// reads returns an error if this Codec cannot decode payloads of the codec id.
func (c *Codec[V]) reads(id ID) error {
	t := reflect.TypeFor[V]()
	switch {
	case id == Binary && !c.binary:
		return fmt.Errorf("codec: Binary needs MarshalBinary and UnmarshalBinary, which %v lacks", t)
	case id == Raw && !c.raw:
		return fmt.Errorf("codec: Raw is for string and []byte, not for %v", t)
	case id == JSON, id == Binary, id == Raw, id == c.id && c.custom != nil:
		return nil
	}
	return fmt.Errorf("codec: unknown %v", id)
}

// Encode encodes v. A nil, which Raw, Binary and users' codecs do not support, is written as the
// null of JSON. A value that JSON would change is a NotCarried error.
func (c *Codec[V]) Encode(v V) (p Payload, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = Payload{}, c.caught(r)
		}
	}()
	p.Codec = c.id
	switch {
	case c.custom != nil:
		p, err = encodeCustom(c.custom, c.id, &v, c.pointer, c.maxBytes)
	case c.id == Raw:
		p, err = encodeRaw(&v, c.maxBytes)
	default:
		p.Bytes, err = json.Marshal(&v) // &v: so that methods of *V are found, as they are when it is decoded
		if err == nil && c.exact != nil {
			err = c.exact.check(reflect.ValueOf(&v).Elem(), p.Bytes)
		}
	}
	switch {
	case err != nil:
		return Payload{}, hidden[V]("encode", c.id, err)
	case len(p.Bytes) > c.maxBytes:
		return Payload{}, ErrTooLarge
	}
	if c.compressAbove > 0 && len(p.Bytes) > c.compressAbove {
		p.compress()
	}
	return p, nil
}

// Decode decodes p into a new value: see DecodeTo.
func (c *Codec[V]) Decode(p Payload) (*V, error) { return c.DecodeTo(new(V), p) }

// DecodeTo decodes p into to, which must point to a zero V, and returns to. If it returns an error,
// the result is nil, and *to must not be used: it may be partially decoded. The value may share
// memory with p.Bytes, which must not be modified afterwards.
func (c *Codec[V]) DecodeTo(to *V, p Payload) (v *V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = c.caught(r)
		}
		if err != nil {
			v = nil
		}
	}()
	if len(p.Bytes) > c.maxBytes {
		return nil, ErrTooLarge
	}
	v = to
	if p.Compressed {
		if err := p.decompress(c.maxBytes); err != nil {
			return nil, hidden[V]("decompress", p.Codec, err)
		}
	}
	if p.Codec == JSON { // the usual codec, without a lookup
		err = json.Unmarshal(p.Bytes, v)
	} else if err = c.reads(p.Codec); err == nil {
		switch p.Codec {
		case Binary:
			err = decodeCustom(Builtin(Binary), p.Bytes, v, c.pointer)
		case Raw:
			decodeRaw(p.Bytes, v)
		default:
			err = decodeCustom(c.custom, p.Bytes, v, c.pointer)
		}
	} else {
		return nil, err
	}
	if err != nil {
		err = hidden[V]("decode", p.Codec, err)
	}
	return v, err
}

// compress compresses p if that makes it smaller. S2's block format states the length of the
// content, so that decompress can refuse it before it allocates. A stream format would have to be
// cut off while it grows.
func (p *Payload) compress() {
	if b := s2.Encode(nil, p.Bytes); len(b) < len(p.Bytes) {
		p.Bytes, p.Compressed = b, true
	}
}

// Len returns the length of the encoding before compression.
func (p Payload) Len() int {
	if p.Compressed {
		n, _ := s2.DecodedLen(p.Bytes)
		return n
	}
	return len(p.Bytes)
}

func (p *Payload) decompress(maxBytes int) error {
	n, err := s2.DecodedLen(p.Bytes)
	if err != nil {
		return err
	}
	if n > maxBytes {
		return ErrTooLarge
	}
	p.Bytes, err = s2.Decode(nil, p.Bytes) // refuses blocks that are shorter or longer than stated
	return err
}

// ErrTooLarge is returned for an encoding, a payload, or a decompressed payload that is longer
// than New's maxBytes.
var ErrTooLarge = errors.New("codec: too large")

// hidden reduces an error to its type. The texts of encoding/json and other packages quote the
// value, which may be private.
func hidden[V any](op string, id ID, err error) error {
	if errors.Is(err, ErrTooLarge) {
		return ErrTooLarge
	}
	if changed, ok := errors.AsType[NotCarried](err); ok {
		return changed
	}
	if text, ok := errors.AsType[FormatError](err); ok {
		return fmt.Errorf("codec: %s %v of %v: %w", op, id, reflect.TypeFor[V](), text)
	}
	return fmt.Errorf("codec: %s %v of %v: %T", op, id, reflect.TypeFor[V](), err)
}

// FormatError is an error text of this module about a payload. It shows nothing of the value.
type FormatError string

func (f FormatError) Error() string { return string(f) }
