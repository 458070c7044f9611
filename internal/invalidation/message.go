package invalidation

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"strconv"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
)

// A message is the payload that an announcement publishes:
//
//	0     format version
//	1     the range of the keys
//	2-9   origin: identifies the announcing process, so that it recognises its own messages
//	10-   previous number of the range, a space, its own number, a space: both decimal, inserted
//	      by the script
//	then  the invalidated keys: 'k' and the stable hash of each key in 8 bytes; or 'l' and the
//	      name of a loader, whose generation is now the number; or 'g', the name of a loader, a
//	      NUL, and the stable hashes of some of its groups; or 't' and a body for Listeners; or
//	      'n' and several announcements of keys or groups that were gathered, see gather: of each
//	      its previous number, its number and the length of its last part, all in decimal and
//	      followed by a space, its origin in 8 bytes, and its last part
//
// The version is inside the message, so that programs of two versions can share a channel. The
// parts before the last one are the same in all versions. A message whose last part has an
// unknown kind still carries its number, and clears its range. A message with an unknown version
// carries no information. The previous number of the next message, or the next poll, shows that
// it is missing.
const (
	formatByte = 0xC1
	headSize   = 10

	keysKind   = 'k'
	loaderKind = 'l'
	groupKind  = 'g'
	bodyKind   = 't'

	gatheredKind = 'n'
)

// A Message is a decoded announcement.
type Message struct {
	Range            int // of the keys
	Origin           uint64
	Previous, Number uint64
	Kind             byte   // of the last part: 'k', 'l', 'g', 't' or 'n'; 0: unknown to this version
	Body             []byte // the last part after its kind; a loader's name is cut to maxName bytes
}

var errMalformed = errors.New("malformed message")

// appendHead appends the part before the numbers.
func appendHead(dst []byte, rng int, origin uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, formatByte, byte(rng)), origin)
}

// appendLoader appends the part after the numbers, for a whole loader.
func appendLoader(dst []byte, name string) []byte { return append(append(dst, loaderKind), name...) }

// isAnnouncement reports whether the first byte marks an announcement, in any format version.
func isAnnouncement(payload string) bool { return len(payload) > 0 && payload[0]>>4 == formatByte>>4 }

// Decode decodes a published message. Its allocations do not grow with the message.
func Decode(b []byte) (m Message, err error) {
	if len(b) < headSize || b[0] != formatByte || int(b[1]) >= conn.Ranges {
		return Message{}, errMalformed
	}
	m.Range, m.Origin = int(b[1]), binary.BigEndian.Uint64(b[2:])
	rest := b[headSize:]
	for _, n := range []*uint64{&m.Previous, &m.Number} {
		end := bytes.IndexByte(rest[:min(len(rest), maxDigits+1)], ' ')
		if end < 0 {
			return Message{}, errMalformed
		}
		if *n, err = parseNumber(string(rest[:end])); err != nil {
			return Message{}, err
		}
		rest = rest[end+1:]
	}
	if m.Number == 0 || len(rest) == 0 {
		return Message{}, errMalformed
	}
	m.Kind, m.Body = rest[0], rest[1:]
	switch {
	case canBeGathered(m.Kind, m.Body), m.Kind == bodyKind:
	case m.Kind == loaderKind:
		m.Body = m.Body[:min(len(m.Body), maxName)]
	case m.Kind == gatheredKind && m.whole():
	default:
		m.Kind, m.Body = 0, nil
	}
	return m, nil
}

// canBeGathered reports whether a last part is one that can be in a gathered message.
func canBeGathered(kind byte, body []byte) bool {
	return kind == keysKind && len(body)%8 == 0 || kind == groupKind && hasGroups(body)
}

// Parts returns the announcements of a message, in their order: those that were gathered, or the
// message itself.
func (m *Message) Parts() iter.Seq[*Message] {
	return func(yield func(*Message) bool) {
		if m.Kind != gatheredKind {
			yield(m)
			return
		}
		for rest := m.Body; len(rest) > 0; {
			part, after, ok := m.part(rest)
			if !ok || !yield(&part) {
				return
			}
			rest = after
		}
	}
}

// part returns the first of the gathered announcements in b, and the bytes that follow it.
func (m *Message) part(b []byte) (part Message, rest []byte, ok bool) {
	var numbers [3]uint64
	for i := range numbers {
		end := bytes.IndexByte(b[:min(len(b), maxDigits+1)], ' ')
		if end < 0 {
			return part, nil, false
		}
		var err error
		if numbers[i], err = parseNumber(string(b[:end])); err != nil {
			return part, nil, false
		}
		b = b[end+1:]
	}
	const origin = 8
	if numbers[1] == 0 || numbers[2] == 0 || len(b) < origin || numbers[2] > uint64(len(b)-origin) {
		return part, nil, false
	}
	end := origin + int(numbers[2])
	part = Message{Range: m.Range, Origin: binary.BigEndian.Uint64(b), Previous: numbers[0], Number: numbers[1],
		Kind: b[origin], Body: b[origin+1 : end]}
	return part, b[end:], canBeGathered(part.Kind, part.Body)
}

// whole reports whether the body of a gathered message has announcements only, whose numbers end
// with the message's number.
func (m *Message) whole() bool {
	last := uint64(0)
	for rest := m.Body; len(rest) > 0; {
		part, after, ok := m.part(rest)
		if !ok {
			return false
		}
		last, rest = part.Number, after
	}
	return last == m.Number
}

// appendGroups appends the part after the numbers, for groups of a loader.
func appendGroups(dst []byte, loader string, set groups.Set) []byte {
	return append(append(append(append(dst, groupKind), loader...), 0), set...)
}

// hasGroups reports whether body is the name of a loader and the hashes of groups.
func hasGroups(body []byte) bool {
	end := bytes.IndexByte(body[:min(len(body), maxName+1)], 0)
	return end >= 0 && len(body) > end+1 && (len(body)-end-1)%8 == 0
}

// Groups returns the loader and the hashes of its groups, if the message contains groups.
func (m *Message) Groups() (loader string, set groups.Set) {
	if m.Kind != groupKind {
		return "", nil
	}
	name, hashes, _ := bytes.Cut(m.Body, []byte{0})
	return string(name), hashes
}

// maxName exceeds the length of any loader's name, in bytes.
const maxName = 1 << 10

// Each calls f with the stable hash of each key, if the message contains keys.
func (m *Message) Each(f func(stable uint64)) {
	if m.Kind != keysKind {
		return
	}
	for b := m.Body; len(b) >= 8; b = b[8:] {
		f(binary.BigEndian.Uint64(b))
	}
}

// The largest number of a script, and its digits. Lua's numbers are doubles.
const (
	maxNumber = 1<<53 - 1
	maxDigits = 16
)

// parseNumber parses a number from a script.
func parseNumber(digits string) (uint64, error) {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > maxNumber {
		return 0, errMalformed
	}
	return n, nil
}

// Topic returns the Redis channel of the caches with this prefix whose keys are in database db.
func Topic(prefix string, db int) string {
	topic := prefix + "::invalidations"
	if db != 0 {
		topic += "." + strconv.Itoa(db)
	}
	return topic
}

// Numbers returns the name of the hash with the numbers and generations of a range.
func Numbers(prefix string, rng int) string { return prefix + "::announced:{" + conn.Tag(rng) + "}" }
