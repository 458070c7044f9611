// Package codec turns a value into the payload of a Redis entry, and back.
//
// The codecs are a closed set, and an entry says which one wrote it. So every process reads what any other has written, whichever codec
// each is configured with: that only decides how values are written. What a payload claims is never believed before it is checked:
// a few bytes cannot make the decoder allocate gigabytes or overflow the stack, which would end the process.
package codec

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// ID names a codec. IDs are written into entries: never renumber them.
type ID uint8

// The codecs; 0 is the default one, Raw or JSON.
//
// MsgPack names a field by its tag "msgpack", else "codec", else "json", else as in Go. Times come back in UTC. In an any, an integer comes back
// as an int64 or uint64, a float as a float64, and a map as a map[string]any; one with other keys does not come back at all.
const (
	JSON    ID = 1 // encoding/json
	MsgPack ID = 2 // MessagePack; see below
	Binary  ID = 3 // encoding.BinaryMarshaler and BinaryUnmarshaler
	Raw     ID = 4 // a string or []byte as it is
)

func (id ID) String() string {
	switch id {
	case JSON:
		return "JSON"
	case MsgPack:
		return "MsgPack"
	case Binary:
		return "Binary"
	case Raw:
		return "Raw"
	}
	return fmt.Sprintf("codec %d", uint8(id))
}

// Payload is an encoded value.
type Payload struct {
	Codec      ID
	Compressed bool
	Bytes      []byte // may share memory with the value
}

// Codec encodes and decodes values of one type. It is immutable, and safe for concurrent use.
type Codec[V any] struct {
	id            ID
	compressAbove int
	maxBytes      int
	caught        func(any) error
	raw           bool  // V is string or []byte
	pointer       bool  // V is a pointer
	binary        bool  // V can be Binary
	msgpack       error // why V cannot be MsgPack
}

// New makes a Codec that writes with codec id; 0: Raw if V is exactly string or []byte, else JSON. Binary is never a default: a struct that
// embeds a time.Time inherits its MarshalBinary, and would lose its other fields. (It inherits MarshalJSON as well.)
//
// Payloads longer than compressAbove bytes are compressed, if that makes them smaller; 0: none is. maxBytes bounds a payload before it
// is compressed and after it is decompressed. caught makes the error of a panic in a value's own methods; nil: one that tells the type
// of what was recovered.
func New[V any](id ID, compressAbove, maxBytes int, caught func(recovered any) error) (*Codec[V], error) {
	t := reflect.TypeFor[V]()
	c := &Codec[V]{
		id:            id,
		compressAbove: compressAbove,
		maxBytes:      maxBytes,
		caught:        caught,
		raw:           t == reflect.TypeFor[string]() || t == reflect.TypeFor[[]byte](),
		pointer:       t.Kind() == reflect.Pointer,
		binary:        roundTripsBinary(t),
		msgpack:       checkMsgPack(t),
	}
	if caught == nil {
		c.caught = func(recovered any) error { return fmt.Errorf("codec: panic of type %T", recovered) }
	}
	if id == 0 {
		c.id = JSON
		if c.raw {
			c.id = Raw
		}
	}
	switch {
	case compressAbove < 0:
		return nil, fmt.Errorf("codec: compressAbove %d: negative", compressAbove)
	case maxBytes <= 0:
		return nil, fmt.Errorf("codec: maxBytes %d: at least 1", maxBytes)
	}
	if err := c.supports(c.id); err != nil {
		return nil, err
	}
	return c, nil
}

// supports tells whether a V can be written and read with codec id.
func (c *Codec[V]) supports(id ID) error {
	t := reflect.TypeFor[V]()
	switch {
	case id < JSON || id > Raw:
		return fmt.Errorf("codec: unknown %v", id)
	case id == MsgPack:
		return c.msgpack
	case id == Binary && !c.binary:
		return fmt.Errorf("codec: Binary needs MarshalBinary and UnmarshalBinary, which %v lacks", t)
	case id == Raw && !c.raw:
		return fmt.Errorf("codec: Raw is for string and []byte, not for %v", t)
	}
	return nil
}

// Encode encodes v. Nil, which Raw and Binary do not know, is written as the null of JSON.
func (c *Codec[V]) Encode(v V) (p Payload, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = Payload{}, c.caught(r)
		}
	}()
	p.Codec = c.id
	switch c.id {
	case MsgPack:
		p.Bytes, err = encodeMsgPack(&v, c.maxBytes)
	case Binary:
		p, err = encodeBinary(&v, c.pointer)
	case Raw:
		p, err = encodeRaw(&v, c.maxBytes)
	default:
		p.Bytes, err = json.Marshal(&v) // &v: so that methods of *V are found, as they are when it is decoded
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

// Decode decodes p, whichever codec wrote it. With an error it returns the zero V, never one that is decoded in part. The value may share
// memory with p.Bytes, which must not be written to any more.
func (c *Codec[V]) Decode(p Payload) (v V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = c.caught(r)
		}
		if err != nil {
			v = *new(V)
		}
	}()
	if len(p.Bytes) > c.maxBytes {
		return v, ErrTooLarge
	}
	if p.Compressed {
		if err := p.decompress(c.maxBytes); err != nil {
			return v, hidden[V]("decompress", p.Codec, err)
		}
	}
	if p.Codec == JSON { // the usual one: nothing is looked up
		err = json.Unmarshal(p.Bytes, &v)
	} else if err = c.supports(p.Codec); err == nil {
		switch p.Codec {
		case MsgPack:
			err = decodeMsgPack(p.Bytes, &v)
		case Binary:
			err = decodeBinary(p.Bytes, &v, c.pointer)
		case Raw:
			decodeRaw(p.Bytes, &v)
		}
	} else {
		return v, err
	}
	if err != nil {
		err = hidden[V]("decode", p.Codec, err)
	}
	return v, err
}
