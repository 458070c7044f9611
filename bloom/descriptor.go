package bloom

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// descriptor tells what generations a filter has in Redis. It is one string there, JSON, so that it
// is changed as a whole, by comparing all its bytes, and can be read by people.
type descriptor struct {
	Format   int          `json:"format"`
	Stamp    string       `json:"stamp"`              // of this change: no other has it
	Active   *generation  `json:"active,omitempty"`   // which answers; nil: none does
	Building *generation  `json:"building,omitempty"` // which a rebuild fills; it is added to once it is ready
	Old      []generation `json:"old,omitempty"`      // which are to be removed
	Hiding   *hiding      `json:"hiding,omitempty"`   // of the one that answered last
}

// generation is a filter's bits from one rebuild to the next. Its id is used once.
type generation struct {
	ID       string    `json:"id"`
	Segments uint64    `json:"segments"`
	Bits     uint64    `json:"bits"`
	K        uint64    `json:"k"`
	Capacity uint64    `json:"capacity"`
	Rate     float64   `json:"rate"`
	Ready    bool      `json:"ready"`            // all its segments are there
	Begun    time.Time `json:"begun"`            // by the clock of the process that rebuilds
	Tagged   bool      `json:"tagged,omitempty"` // its segments have tags; programs that know of none forget that
	Hidden   string    `json:"hidden,omitempty"` // the last drop of a generation that had hidden a row, when this was begun
}

// format is that of descriptors and of segments.
const format = 1

const (
	headerBytes = 16 // of a segment, before its bits
	headerBits  = 8 * headerBytes
	tagBytes    = 8 // behind them, or in the place of the first while there are none

	maxDescriptor = 64 << 10
	maxOld        = 64

	// stampBytes are as much of a descriptor as tells it from all others: its text begins with the
	// stamp.
	stampBytes = len(`{"format":1,"stamp":"0123456789abcdef"`)
)

var (
	errDescriptor = errors.New("the descriptor of the filter cannot be read")
	errFormat     = errors.New("the filter is of a newer format than this program knows")
)

// newGeneration is one that no other has the id of.
func newGeneration(s shape, capacity uint64, rate float64) *generation {
	return &generation{ID: newID(), Segments: s.segments, Bits: s.bits, K: s.k, Capacity: capacity, Rate: rate, Begun: time.Now().UTC().Truncate(time.Millisecond), Tagged: true}
}

func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func (g *generation) shape() shape { return shape{segments: g.Segments, bits: g.Bits, k: g.K} }

// header is what each segment begins with: what it is told by that is not of this generation and
// shape is no segment of it.
func (g *generation) header() string {
	b := make([]byte, 0, headerBytes)
	b = append(b, 0xB0|format, byte(g.K))
	b = binary.BigEndian.AppendUint16(b, uint16(g.Segments-1))
	b = binary.BigEndian.AppendUint32(b, uint32(g.Bits/64))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id...))
}

// tag tells a segment from the others of its generation, which have the same header: one that was
// copied over another, or cut short, is no segment. It is the number of the segment and its
// complement, so that none has all bits of another, and a part of the generation's id. While a
// segment is empty and its bits are not allocated, the tag follows the header; then the bits.
// Programs that know of no tags set bits in such a segment without moving the tag: then its bits
// are there, and others. It is empty where the generation has no tags.
func (g *generation) tag(s uint64) string {
	if !g.Tagged {
		return ""
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 0, tagBytes), uint16(s))
	b = binary.BigEndian.AppendUint16(b, ^uint16(s))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id[:4]...))
}

// bitsOf takes a segment apart, as Redis holds it. It answers false if it is not this segment, in
// its whole length. scripts.go has the same in Lua.
func (g *generation) bitsOf(s uint64, raw string) (bits string, ok bool) {
	size, tag := int(g.Bits/8), g.tag(s)
	if len(raw) < headerBytes || raw[:headerBytes] != g.header() {
		return "", false
	}
	bits = raw[headerBytes:]
	switch n := len(bits); {
	case tag == "": // there may be one, that the descriptor was made to forget
		return bits[:min(n, size)], n == 0 || n == tagBytes || n == size || n == size+tagBytes
	case n == size+tagBytes:
		return bits[:size], bits[size:] == tag
	case n == tagBytes && bits == tag:
		return "", true
	default:
		return bits, n <= size && covers(bits, tag)
	}
}

// covers tells whether s begins with all bits of tag.
func covers(s, tag string) bool {
	if len(s) < len(tag) {
		return false
	}
	for i := range len(tag) {
		if s[i]&tag[i] != tag[i] {
			return false
		}
	}
	return true
}

func (g *generation) check() error {
	if id, err := hex.DecodeString(g.ID); err != nil || len(id) != 8 || !(g.Rate >= 0 && g.Rate <= 1) {
		return errDescriptor
	}
	if err := g.shape().check(); err != nil {
		return fmt.Errorf("%w: %w", errDescriptor, err)
	}
	return nil
}

// all are the generations that it names.
func (d *descriptor) all() []*generation {
	var all []*generation
	for _, g := range []*generation{d.Active, d.Building} {
		if g != nil {
			all = append(all, g)
		}
	}
	for i := range d.Old {
		all = append(all, &d.Old[i])
	}
	return all
}

// addedTo are the generations that a key must be in, so that nobody who asks one of them, or will,
// misses it: not those that are old, for a caller that asks a generation makes sure that it is the
// active one; nor one whose segments are not all there yet, for its rebuild has not begun to read.
func (d *descriptor) addedTo() []*generation {
	return slices.DeleteFunc(d.all(), func(g *generation) bool { return g != d.Active && (g != d.Building || !g.Ready) })
}

func (d *descriptor) encode() (string, error) {
	d.Format, d.Stamp = format, newID()
	b, err := json.Marshal(d)
	return string(b), err
}

// decodeDescriptor reads what Redis holds; nothing is a descriptor without generations. It accepts
// nothing of unbounded size.
func decodeDescriptor(raw string) (d descriptor, err error) {
	if raw == "" {
		return descriptor{}, nil
	}
	if len(raw) > maxDescriptor || json.Unmarshal([]byte(raw), &d) != nil {
		return descriptor{}, errDescriptor // without its text, which is not ours
	}
	if d.Format > format {
		return descriptor{}, errFormat
	}
	if d.Format < 1 || len(d.Old) > maxOld {
		return descriptor{}, errDescriptor
	}
	seen := make(map[string]bool)
	for _, g := range d.all() {
		if err := g.check(); err != nil {
			return descriptor{}, err
		}
		if seen[g.ID] {
			return descriptor{}, errDescriptor
		}
		seen[g.ID] = true
	}
	return d, nil
}

// segmentKey is where a segment is: in a slot of its own. No name of a filter has a "/".
func segmentKey(prefix, name, id string, s uint64) string {
	return prefix + "::bloom:{" + name + "/" + id + "/" + strconv.FormatUint(s, 10) + "}"
}
