package cacheaside

import (
	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// Codec is how a loader writes values into Redis. Each entry says how it is written, and every loader reads all of them, so the codec can be
// changed at any time: programs that write different ones, during a deployment say, read each other's entries.
type Codec uint8

// The codecs. That of a loader that sets none: strings and []byte are stored as they are, anything else as JSON.
const (
	// JSON is encoding/json. It replaces what is not UTF-8 in strings, and reads nothing that is nested deeper than 10,000.
	JSON = Codec(codec.JSON)

	// MsgPack is MessagePack: shorter than JSON, and faster to decode. It names a field by its tag "msgpack", else "codec", else "json", else as in
	// Go. Times come back in UTC; in an any, integers as int64 or uint64, maps as map[string]any.
	MsgPack = Codec(codec.MsgPack)

	// Binary is by encoding.BinaryMarshaler and BinaryUnmarshaler, which the values must be. (A struct that embeds such a type, as
	// time.Time, is one too, and loses its other fields.)
	Binary = Codec(codec.Binary)
)

// decode takes a round's value out of an entry. It answers false, and nothing has changed, if the entry is not the key's or cannot be decoded.
// (JSON of another struct can: that is what LoaderOptions.Version is for.)
func (l *Loader[K, V]) decode(s *state[V], e *lease.Entry) bool {
	value, ok := l.content(s, e)
	if !ok {
		return false
	}
	s.value, s.null = value, e.Null
	return true
}

// content is the value of an entry that stands under a round's key, if it is that key's and can be decoded.
func (l *Loader[K, V]) content(s *state[V], e *lease.Entry) (value V, ok bool) {
	if !e.Unkey(s.text, s.hashed) {
		return value, false
	}
	if e.Null {
		return value, true
	}
	value, err := l.codec.Decode(codec.Payload{Codec: codec.ID(e.Codec), Compressed: e.Compressed, Bytes: e.Payload})
	return value, err == nil
}
