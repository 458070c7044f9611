package invalidation

import (
	"strconv"

	"github.com/cacheaside/cacheaside/internal/conn"
)

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

// ReadQuestion reads what a meter asks; ok is false if it is no question that can be read.
func ReadQuestion(payload []byte) (q Question, ok bool) {
	q, err := decodeQuestion(string(payload))
	return q, err == nil
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
