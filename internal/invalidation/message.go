package invalidation

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A message is what one announcement publishes:
//
//	0     format version
//	1     the range that the keys are of
//	2-9   origin: which process announces it, so that it recognises its own
//	10-   previous number of the range, a space, its own number, a space: both decimal, put in by
//	      the script
//	then  what is invalidated: 'k' and 8 bytes for each key, their stable hashes; or 'l' and a
//	      loader's name, whose generation is now the number; or 't' and what a Listener is to be
//	      told
//
// The version stands inside, so that programs of two versions hear each other. The parts before the
// last one must be the same in all versions: a message whose last part is of an unknown kind still
// tells its number, and ends all that is remembered of its range. One whose first byte is of an
// unknown version tells nothing; the next one's previous number, or the next poll, tells that it is
// missing.
const (
	formatByte = 0xC1
	headSize   = 10

	keysKind   = 'k'
	loaderKind = 'l'
	toldKind   = 't'
)

// Message is a message that was read.
type Message struct {
	Range            int // of the keys
	Origin           uint64
	Previous, Number uint64
	Kind             byte   // of the last part: 'k', 'l' or 't'; 0 for one that this version does not know
	Body             []byte // the last part behind its kind; of a loader's name, at most maxName bytes
}

var errMalformed = errors.New("malformed message")

// appendHead is what stands before the numbers.
func appendHead(dst []byte, rng int, origin uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, formatByte, byte(rng)), origin)
}

// appendLoader is what stands behind the numbers, for a whole loader.
func appendLoader(dst []byte, name string) []byte { return append(append(dst, loaderKind), name...) }

// isAnnouncement tells whether a message says of itself that it is one, in this format or another.
func isAnnouncement(payload string) bool { return len(payload) > 0 && payload[0]>>4 == formatByte>>4 }

// Decode reads a published message. It allocates nothing that grows with the message.
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
		if *n, err = number(string(rest[:end])); err != nil {
			return Message{}, err
		}
		rest = rest[end+1:]
	}
	if m.Number == 0 || len(rest) == 0 {
		return Message{}, errMalformed
	}
	m.Kind, m.Body = rest[0], rest[1:]
	switch {
	case m.Kind == keysKind && len(m.Body)%8 == 0, m.Kind == toldKind:
	case m.Kind == loaderKind:
		m.Body = m.Body[:min(len(m.Body), maxName)]
	default:
		m.Kind, m.Body = 0, nil
	}
	return m, nil
}

// maxName is more than any loader's name of ours.
const maxName = 1 << 10

// Each calls f with the stable hash of each key, if the message is about keys.
func (m *Message) Each(f func(stable uint64)) {
	if m.Kind != keysKind {
		return
	}
	for b := m.Body; len(b) >= 8; b = b[8:] {
		f(binary.BigEndian.Uint64(b))
	}
}

// maxNumber is the largest that a script counts to: Lua's numbers are doubles.
const (
	maxNumber = 1<<53 - 1
	maxDigits = 16
)

// number reads what a script has counted.
func number(digits string) (uint64, error) {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > maxNumber {
		return 0, errMalformed
	}
	return n, nil
}

// Topic is the Redis channel of the caches of this prefix, whose keys are in database db.
func Topic(prefix string, db int) string {
	topic := prefix + "::invalidations"
	if db != 0 {
		topic += "." + strconv.Itoa(db)
	}
	return topic
}

// Numbers is the name of the hash that has the numbers and generations of a range.
func Numbers(prefix string, rng int) string { return prefix + "::announced:{" + conn.Tag(rng) + "}" }
