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

type message struct {
	rng       int
	origin    uint64
	prev, num uint64
	hashes    []byte // 8 bytes for each key
	loader    string
	told      []byte // for a Listener; not nil if there is such a part
	unknown   bool   // of a kind that this version does not know
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

// decode reads a message. It allocates nothing that grows with it.
func decode(b []byte) (m message, err error) {
	if len(b) < headSize || b[0] != formatByte || int(b[1]) >= conn.Ranges {
		return message{}, errMalformed
	}
	m.rng, m.origin = int(b[1]), binary.BigEndian.Uint64(b[2:])
	rest := b[headSize:]
	for _, n := range []*uint64{&m.prev, &m.num} {
		end := bytes.IndexByte(rest[:min(len(rest), maxDigits+1)], ' ')
		if end < 0 {
			return message{}, errMalformed
		}
		if *n, err = number(string(rest[:end])); err != nil {
			return message{}, err
		}
		rest = rest[end+1:]
	}
	if m.num == 0 || len(rest) == 0 {
		return message{}, errMalformed
	}
	switch kind, body := rest[0], rest[1:]; {
	case kind == keysKind && len(body)%8 == 0:
		m.hashes = body
	case kind == loaderKind:
		m.loader = string(body[:min(len(body), maxName)])
	case kind == toldKind:
		m.told = body
	default:
		m.unknown = true
	}
	return m, nil
}

// maxName is more than any loader's name of ours.
const maxName = 1 << 10

// each calls f with the stable hash of each key.
func (m *message) each(f func(stable uint64)) {
	for b := m.hashes; len(b) >= 8; b = b[8:] {
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

// Announcement is a message as a program that only looks reads it.
type Announcement struct {
	Range        int    // of the keys
	Origin       uint64 // the process that announces it
	Previous     uint64 // number of the range
	Number       uint64
	Kind         byte // 'k' keys, 'l' a loader, 't' what a Listener is told; another is unknown to this version
	Hashes       []uint64
	Loader       string
	TellingBytes int // of what a Listener is told
}

// Decode reads a published message. A message that it cannot read is an error.
func Decode(payload []byte) (Announcement, error) {
	m, err := decode(payload)
	if err != nil {
		return Announcement{}, err
	}
	a := Announcement{Range: m.rng, Origin: m.origin, Previous: m.prev, Number: m.num, Loader: m.loader, TellingBytes: len(m.told)}
	m.each(func(stable uint64) { a.Hashes = append(a.Hashes, stable) })
	switch {
	case m.unknown:
		a.Kind = '?'
	case m.hashes != nil:
		a.Kind = keysKind
	case m.told != nil:
		a.Kind = toldKind
	default:
		a.Kind = loaderKind
	}
	return a, nil
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
