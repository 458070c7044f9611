// Package msgpack provides MessagePack as the codec of a loader:
//
//	cacheaside.NewLoader(cache, "book", load, &cacheaside.LoaderOptions{Codec: msgpack.Codec})
//
// It is a separate package because a program that imports it is 1.6 MB larger. Nothing is
// registered globally: a loader without this codec cannot read entries of a loader with it.
package msgpack

import (
	"math"
	"reflect"
	"sync"

	"github.com/ugorji/go/codec"

	entry "github.com/cacheaside/cacheaside/internal/codec"
)

// Codec is MessagePack, for LoaderOptions.Codec. It is shorter than JSON, and faster to decode.
// Its number is 2.
//
// The name of a field is that of its tag "msgpack", or else "codec", or else "json", or else the
// name in Go. Times come back in UTC. In an any, an integer comes back as an int64 or uint64, a
// float as a float64, and a map as a map[string]any; a map with other keys cannot be decoded.
//
// NewLoader returns an error for a type of which Codec loses a part: fields that are not
// exported, are omitted by a tag "-", or share their name with another field; functions, channels
// and complex numbers; interfaces that have methods; pointers in the keys of maps; in a program
// of Go 1.27, floats as keys of maps; structs that embed a type with MarshalBinary, such as
// time.Time, and have other fields. A type that has MarshalBinary and UnmarshalBinary is accepted
// without a check. MarshalJSON and MarshalText are not used.
const Codec messagePack = messagePack(entry.MsgPack)

type messagePack uint8

var _ entry.Native = Codec

// Number returns 2.
func (messagePack) Number() uint8 { return uint8(entry.MsgPack) }

// String returns the name of the codec.
func (messagePack) String() string { return entry.MsgPack.String() }

// Encode returns the encoding of v, or of the value that it points to.
func (messagePack) Encode(v any) ([]byte, error) { return encode(v, math.MaxInt) }

// Decode decodes b into the value that v points to, after it has checked the structure of b.
func (messagePack) Decode(b []byte, v any) error { return decode(b, v) }

// EncodeNative is Encode with a maximum length.
func (messagePack) EncodeNative(v any, most entry.Bytes) ([]byte, error) { return encode(v, int(most)) }

// DecodeNative is Decode.
func (messagePack) DecodeNative(b []byte, v any) error { return decode(b, v) }

// The library is ugorji/go/codec. All libraries that use reflection can be made to crash the
// process. This one crashes only for ten million nested arrays in a field that the struct does not
// have, and scanner prevents that. In all other cases it bounds nesting, allocates at most 1 MiB
// for a claimed length, refuses numbers that overflow, and supports the tags of JSON.
// vmihailenco/msgpack v5.4.1 allocates 64 GiB for dd ff ff ff ff, decodes 300 as an int8 of 44, and
// reads a map's length from inside an extension, where a scanner does not see it. shamaton/msgpack
// v3.2 also overflows the stack, decodes nested maps as map[any]any, and does not support
// MarshalBinary, so a netip.Addr comes back empty.
//
// The version is v1.2.14 and not v1.3.2, because v1.3 makes a binary 7.1 MB larger, and v1.2 only
// 1.6 MB. All tests pass with either.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // the current format, in which strings, bytes and times are distinct
	h.TypeInfos = codec.NewTypeInfos([]string{"msgpack", "codec", "json"})
	h.MapType = reflect.TypeFor[map[string]any]() // as in encoding/json
	h.MaxDepth = maxDepth + 1
	h.MapValueReset = true // of two equal keys the last one wins, without merging
	h.SliceElementReset = true
	h.InterfaceReset = true
	return h
}()

var (
	encoders = sync.Pool{New: func() any { return codec.NewEncoder(nil, handle) }}
	decoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, handle) }}
)

// output receives the bytes of an encoder. It stops the encoding if it is too long, or nested so
// deeply that it could not be decoded. Without it, the library follows a value that contains
// itself until the stack overflows.
type output struct {
	scanner
	bytes []byte
	most  int
	err   error
}

func (o *output) Write(b []byte) (int, error) {
	if len(b) > o.most-len(o.bytes) {
		o.err = entry.ErrTooLarge
	} else {
		_, o.err = o.scanner.Write(b)
	}
	if o.err != nil {
		return 0, o.err
	}
	o.bytes = append(o.bytes, b...)
	return len(b), nil
}

func encode(v any, most int) ([]byte, error) {
	o := &output{most: most}
	e := encoders.Get().(*codec.Encoder)
	e.Reset(o)
	err := e.Encode(v)
	e.Reset(nil)
	encoders.Put(e)
	switch {
	case o.err != nil:
		return nil, o.err
	case err != nil:
		return nil, err
	}
	return o.bytes, o.close()
}

func decode(b []byte, v any) error {
	var s scanner
	if _, err := s.Write(b); err != nil {
		return err
	}
	if err := s.close(); err != nil {
		return err
	}
	d := decoders.Get().(*codec.Decoder)
	d.ResetBytes(b)
	err := d.Decode(v)
	if err == nil && d.NumBytesRead() != len(b) {
		err = errTrailing
	}
	d.ResetBytes(nil)
	decoders.Put(d)
	return err
}
