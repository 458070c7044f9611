// Package msgpack is MessagePack as the codec of a loader:
//
//	cacheaside.NewLoader(cache, "book", load, &cacheaside.LoaderOptions{Codec: msgpack.Codec})
//
// It is a package of its own since a program that imports it is 1.6 MB larger. Nothing registers
// itself: a loader without this codec does not read what one with it has written.
package msgpack

import (
	"math"
	"reflect"
	"sync"

	"github.com/ugorji/go/codec"

	own "github.com/cacheaside/cacheaside/internal/codec"
)

// Codec is MessagePack, for LoaderOptions.Codec: shorter than JSON, and faster to decode. Its
// number is 2.
//
// A field is named by its tag "msgpack", else "codec", else "json", else as in Go. Times come back
// in UTC. In an any, an integer comes back as an int64 or uint64, a float as a float64, and a map
// as a map[string]any; one with other keys does not come back at all.
//
// NewLoader refuses types of which it loses a part: fields that are not exported, are left out by
// "-" in their tag or share their name with another; functions, channels and complex numbers;
// interfaces that have methods; pointers in the keys of maps; structs that embed a type with
// MarshalBinary, as time.Time, and have other fields. A type that has MarshalBinary and
// UnmarshalBinary is believed. MarshalJSON and MarshalText are not used.
var Codec messagePack

type messagePack struct{}

var _ own.Native = Codec

// Number is 2.
func (messagePack) Number() uint8 { return uint8(own.MsgPack) }

// String is the codec's name.
func (messagePack) String() string { return own.MsgPack.String() }

// Encode encodes v, or what it points to.
func (messagePack) Encode(v any) ([]byte, error) { return encode(v, math.MaxInt) }

// Decode decodes into what v points to. It checks b as a whole before.
func (messagePack) Decode(b []byte, v any) error { return decode(b, v) }

// EncodeNative is Encode with a bound.
func (messagePack) EncodeNative(v any, most own.Bytes) ([]byte, error) { return encode(v, int(most)) }

// DecodeNative is Decode.
func (messagePack) DecodeNative(b []byte, v any) error { return decode(b, v) }

// Why ugorji: the libraries that work by reflection can all be made to end the process, this one by ten million nested arrays in a field
// that the struct does not have. The scanner closes that hole. Otherwise it bounds nesting, allocates at most 1 MiB for what one length
// claims, refuses numbers that overflow, and knows the tags of JSON. vmihailenco/msgpack v5.4.1 asks for 64 GiB at dd ff ff ff ff,
// decodes 300 as an int8 of 44, and reads a map's length from inside an extension, where a scanner does not see it. shamaton/msgpack
// v3.2 overflows the stack too, makes map[any]any of nested maps, and knows no MarshalBinary, so that a netip.Addr comes back empty.
//
// v1.2.14 and not v1.3.2: all our tests pass with either, but v1.3 makes a binary 7.1 MB larger, and v1.2 1.6 MB.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // the format of today: strings, bytes and times are distinct
	h.TypeInfos = codec.NewTypeInfos([]string{"msgpack", "codec", "json"})
	h.MapType = reflect.TypeFor[map[string]any]() // as encoding/json has it
	h.MaxDepth = maxDepth + 1
	h.MapValueReset = true // a key that comes twice has the last value, not a mixture
	h.SliceElementReset = true
	h.InterfaceReset = true
	return h
}()

var (
	encoders = sync.Pool{New: func() any { return codec.NewEncoder(nil, handle) }}
	decoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, handle) }}
)

// output takes what an encoder writes, and ends the encoding when it is too long, or nested so deep that it could not be decoded: the
// library itself follows a value that contains itself until the stack overflows.
type output struct {
	scanner
	bytes []byte
	most  int
	err   error
}

func (o *output) Write(b []byte) (int, error) {
	if len(b) > o.most-len(o.bytes) {
		o.err = own.ErrTooLarge
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
