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
	"strings"
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
	Hidden   string    `json:"hidden,omitempty"` // the last drop of a generation that had hidden a row, when this was begun
}

// format is that of descriptors and of segments.
const format = 1

const (
	headerBytes = 16 // of a segment, before its bits
	headerBits  = 8 * headerBytes
	tagBytes    = 8 // after its bits, or after the header while there are none

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
	return &generation{ID: newID(), Segments: s.segments, Bits: s.bits, K: s.k, Capacity: capacity, Rate: rate, Begun: time.Now().UTC().Truncate(time.Millisecond)}
}

func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func (g *generation) shape() shape { return shape{segments: g.Segments, bits: g.Bits, k: g.K} }

// header returns the fixed prefix of each segment. A string with any other prefix does not belong to
// this generation.
func (g *generation) header() string {
	b := make([]byte, 0, headerBytes)
	b = append(b, 0xB0|format, byte(g.K))
	b = binary.BigEndian.AppendUint16(b, uint16(g.Segments-1))
	b = binary.BigEndian.AppendUint32(b, uint32(g.Bits/64))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id...))
}

// tag returns the fixed suffix of segment s. All segments of a generation have the same header, so a
// string that was copied from another segment, or cut short, differs in its tag only. The tag is the
// number of the segment, its complement, so that no tag has all bits of another, and a part of the
// generation's id. A segment to which nothing was added is its header and its tag, without bits.
func (g *generation) tag(s uint64) string {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, tagBytes), uint16(s))
	b = binary.BigEndian.AppendUint16(b, ^uint16(s))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id[:4]...))
}

// bitsOf returns the bits of segment s, as Redis holds it; none if nothing was added to it. ok is false
// if raw is not the whole of this segment. The scripts check the same in Lua (see segments).
func (g *generation) bitsOf(s uint64, raw string) (bits string, ok bool) {
	bits, begins := strings.CutPrefix(raw, g.header())
	bits, ends := strings.CutSuffix(bits, g.tag(s))
	return bits, begins && ends && (bits == "" || uint64(len(bits)) == g.Bits/8)
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

// active returns the id of the generation that serves, or "".
func (d *descriptor) active() string {
	if d.Active == nil {
		return ""
	}
	return d.Active.ID
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

// copy returns a descriptor that may be changed. One that cannot be read counts as none.
func (d *known) copy() descriptor {
	to, _ := decodeDescriptor(d.raw)
	return to
}

// segmentKey is where a segment is: in a slot of its own. No name of a filter has a "/".
func segmentKey(prefix, name, id string, s uint64) string {
	return prefix + "::bloom:{" + name + "/" + id + "/" + strconv.FormatUint(s, 10) + "}"
}
