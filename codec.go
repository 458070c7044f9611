package cacheaside

import "github.com/cacheaside/cacheaside/internal/codec"

// Codec is how a loader writes values into Redis: LoaderOptions.Codec. JSON and Binary are here,
// MessagePack is package msgpack, and ExampleCodec shows one of a user's own. All methods are
// called by many goroutines at once. A panic in one does no more harm than an error.
//
// An entry has the Number of the codec that wrote it. A loader reads entries of JSON, of Binary,
// those without a codec (strings and []byte), and those of its own Codec. Any other entry is a miss
// (Stats.Undecodable), and the next load replaces it. So while processes with two codecs run side
// by side, as during a deployment, each key costs at most one more load for each time that it is
// written, as long as one of the two is JSON. To change from one codec of another kind to another,
// use JSON in between; or set another LoaderOptions.Version, so that their entries never meet.
//
// A Codec may have a method more, Check(t reflect.Type) error, which tells whether it carries
// values of a type there and back. NewLoader calls it with the type of the loader's values, and
// fails with its error, unless LoaderOptions.AllowLoss is set. A Codec without it is believed. The
// codecs of this module have it, for those that wrap them: see JSON.
type Codec interface {
	// Number is what entries know this codec by, from 8 to 15; 1 to 7 are this module's. Never
	// change it, nor use one for two formats: nothing else tells them apart.
	Number() uint8

	// Encode returns the encoding of a value. v is a pointer that is not nil: the value itself
	// where the type of the values is a pointer, else a pointer to the value. (A nil is not
	// encoded: it is written as JSON.) What it returns is not its own any more. An encoding that
	// is longer than LoaderOptions.MaxValueBytes is not stored. With an error, the value's callers
	// get an *Error that shows no more of it than its type.
	Encode(v any) ([]byte, error)

	// Decode decodes b, which has at most MaxValueBytes, into what v points to. v is as in Encode,
	// and what it points to is zero. Decode may keep b, but must not change it. It must bear any
	// bytes at all: whoever can write to Redis can have it read them. With an error the entry is a
	// miss.
	Decode(b []byte, v any) error
}

// The codecs of this package. A loader without a Codec stores strings and []byte as they are, and
// anything else as JSON.
var (
	// JSON is encoding/json. Its Check refuses a type of which it loses a part: a field that is not
	// exported, has the tag json:"-" or shares its name with another one; an interface that has
	// methods; a type with MarshalJSON or MarshalText that nothing reads back; a struct that has
	// these from a type that it embeds, as time.Time, and other fields. A channel, a function and a
	// complex number are refused, too. A type that encodes and decodes itself is believed.
	//
	// Losses that a type does not show are not refused. In an any, numbers come back as float64.
	// NaN and infinities are errors. Bytes of a string that are not UTF-8 are replaced. With
	// omitempty an empty slice or map comes back as nil, and so does a pointer to a nil. A time
	// loses its monotonic clock, and its location but for the offset. Nothing is read that is
	// nested deeper than 10,000.
	JSON Codec = codec.Builtin(codec.JSON)

	// Binary is by encoding.BinaryMarshaler and BinaryUnmarshaler, which the values must be. A
	// struct that embeds such a type, as time.Time, is one too, and would lose its other fields:
	// its Check refuses it.
	Binary Codec = codec.Builtin(codec.Binary)
)
