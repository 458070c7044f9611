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

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// descriptor tells what generations a filter has in Redis. It is one string there, JSON, so that it
// is changed as a whole, by comparing all its bytes, and can be read by people.
type descriptor struct {
	Format        int            `json:"format"`
	Revision      string         `json:"stamp"`              // of this change: no other has it
	Active        *generation    `json:"active,omitempty"`   // which answers; nil: none does
	Building      *generation    `json:"building,omitempty"` // which a rebuild fills; it is added to once it is ready
	Old           []generation   `json:"old,omitempty"`      // which are to be removed
	FalseNegative *falseNegative `json:"hiding,omitempty"`   // of the one that answered last
}

// generation is a filter's bits from one rebuild to the next. Its id is used once.
type generation struct {
	ID              string    `json:"id"`
	Segments        uint64    `json:"segments"`
	Bits            uint64    `json:"bits"`
	K               uint64    `json:"k"`
	Capacity        uint64    `json:"capacity"`
	Rate            float64   `json:"rate"`
	Ready           bool      `json:"ready"`            // all its segments are there
	Begun           time.Time `json:"begun"`            // by the clock of the process that rebuilds
	FalseNegativeID string    `json:"hidden,omitempty"` // the last drop of a generation that had hidden a row, when this was begun

	ServerRuns    []string      `json:"servers,omitempty"` // the runs that it was begun on: see Redis.servers
	DeletedBefore uint64        `json:"deleted,omitempty"` // rows, when it was begun
	RebuildTime   time.Duration `json:"took,omitempty"`    // its rebuild
	SampledKeys   [][]byte      `json:"listed,omitempty"`  // some keys of its source, by which loaders judge it
}

// format is that of descriptors and of segments.
const format = 1

const (
	headerBytes = 16 // of a segment, before its bits
	headerBits  = 8 * headerBytes
	tagBytes    = 8 // after its bits, or after the header while there are none

	maxDescriptorBytes = 256 << 10
	maxOld             = 64

	// stampBytes are as much of a descriptor as tells it from all others: its text begins with the
	// stamp.
	revisionBytes = len(`{"format":1,"stamp":"0123456789abcdef"`)
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

// header returns the fixed prefix of each segment. A string with any other prefix does not belong
// to this generation.
func (g *generation) header() string {
	b := make([]byte, 0, headerBytes)
	b = append(b, 0xB0|format, byte(g.K))
	b = binary.BigEndian.AppendUint16(b, uint16(g.Segments-1))
	b = binary.BigEndian.AppendUint32(b, uint32(g.Bits/64))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id...))
}

// tag returns the fixed suffix of segment s. All segments of a generation have the same header, so
// a string that was copied from another segment, or cut short, differs in its tag only. The tag is
// the number of the segment, its complement, so that no tag has all bits of another, and a part of
// the generation's id. A segment to which nothing was added is its header and its tag, without
// bits.
func (g *generation) tag(s uint64) string {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, tagBytes), uint16(s))
	b = binary.BigEndian.AppendUint16(b, ^uint16(s))
	id, _ := hex.DecodeString(g.ID) // checked
	return string(append(b, id[:4]...))
}

// bitsOf returns the bits of segment s, as Redis holds it; none if nothing was added to it. ok is
// false if raw is not the whole of this segment. The scripts check the same in Lua (see segments).
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
func (d *descriptor) generations() []*generation {
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
func (d *descriptor) activeID() string {
	if d.Active == nil {
		return ""
	}
	return d.Active.ID
}

// addedTo returns the generations that a key must be added to: the active one, and the one that is
// being built once its segments are there. Before that its rebuild has not begun to read the table.
// Old ones need no keys, because a lookup makes sure that the generation it asks is the active one.
func (d *descriptor) writeTargets() []*generation {
	return slices.DeleteFunc(d.generations(), func(g *generation) bool { return g != d.Active && (g != d.Building || !g.Ready) })
}

// retire makes g, unless it is nil, an old generation. Of these only the segments matter.
func (d *descriptor) retire(g *generation) {
	if g != nil {
		old := *g
		old.ServerRuns, old.SampledKeys = nil, nil
		d.Old = append(d.Old, old)
	}
}

func (d *descriptor) encode() (string, error) {
	d.Format, d.Revision = format, newID()
	b, err := json.Marshal(d)
	return string(b), err
}

// decodeDescriptor reads what Redis holds; nothing is a descriptor without generations. It accepts
// nothing of unbounded size.
func decodeDescriptor(raw string) (d descriptor, err error) {
	if raw == "" {
		return descriptor{}, nil
	}
	if len(raw) > maxDescriptorBytes || json.Unmarshal([]byte(raw), &d) != nil {
		return descriptor{}, errDescriptor // without its text, which is not ours
	}
	if d.Format > format {
		return descriptor{}, errFormat
	}
	if d.Format < 1 || len(d.Old) > maxOld {
		return descriptor{}, errDescriptor
	}
	seen := make(map[string]bool)
	for _, g := range d.generations() {
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
func (c *cachedDescriptor) copy() descriptor {
	to, _ := decodeDescriptor(c.raw)
	return to
}

// segmentKey is where a segment is: in a slot of its own. No name of a filter has a "/".
func segmentKey(prefix, name, id string, s uint64) string {
	return prefix + "::bloom:{" + name + "/" + id + "/" + strconv.FormatUint(s, 10) + "}"
}

// known is what the descriptor was when it was last read.
type cachedDescriptor struct {
	descriptor
	raw    string
	readAt time.Time
}

// covered tells whether all generations that a key must be in are among those that it was written
// to.
func (d *descriptor) coveredBy(written map[string]bool) bool {
	return !slices.ContainsFunc(d.writeTargets(), func(g *generation) bool { return !written[g.ID] })
}

// The scripts on a segment check first that the string is this segment, whole, and return -1 if
// not: then it is lost, or was removed. No process makes it again, so what a script finds in a
// segment is all that was ever added to it. Places are 4 bytes each, and count from the beginning
// of the string.

// segments has what the scripts do with a segment. Its header has the size of its bits. See
// generation.bitsOf.
const segmentLua = `
local function at(s, i)
  local a, b, c, d = string.byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end
local function whole(key, header, tag)
  if redis.call('GETRANGE', key, 0, 15) ~= header then return false end
  local size = 8 * at(header, 5)
  return redis.call('GETRANGE', key, 16 + size, 24 + size) == tag or redis.call('GETRANGE', key, 16, 24) == tag
end
local function allocated(key, header, tag)
  if not whole(key, header, tag) then return false end
  if redis.call('STRLEN', key) == 24 then
    redis.call('SET', key, header .. string.rep('\0', 8 * at(header, 5)) .. tag)
  end
  return true
end`

// lookupScript tells of each key, whose places are ARGV[4], ARGV[3] for each, whether all of them
// are set: '1' or '0'. All scripts have the header and the tag of the segment before that.
var lookupScript = conn.NewScript(segmentLua + `
if not whole(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
local step, reply = 4 * ARGV[3], {}
for i = 1, #ARGV[4], step do
  local found = '1'
  for j = i, i + step - 1, 4 do
    if redis.call('GETBIT', KEYS[1], at(ARGV[4], j)) == 0 then found = '0' break end
  end
  reply[#reply + 1] = found
end
return table.concat(reply)`)

// addScript sets the places ARGV[3]. The bits are allocated at once, for a string that Redis lets
// grow is given up to twice as much as it needs.
var addScript = conn.NewScript(segmentLua + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
for i = 1, #ARGV[3], 4 do redis.call('SETBIT', KEYS[1], at(ARGV[3], i), '1') end
return 0`)

// mergeScript is addScript for so many places that it takes less to send all bits: ARGV[3], as they
// are to be set, with an empty header. KEYS[2] is theirs for the time being.
var mergeScript = conn.NewScript(segmentLua + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
return 0`)

// countScript counts the bits that are set. The range ends before the tag: it is empty in a segment
// without bits. A value of another type is no segment.
var countScript = conn.NewScript(segmentLua + `
local is, intact = pcall(whole, KEYS[1], ARGV[1], ARGV[2])
if not (is and intact) then return -1 end
return redis.call('BITCOUNT', KEYS[1], 16, -9)`)

// touchScript leaves the mark ARGV[1] in KEYS[2], and returns it with the descriptor KEYS[1].
const touchScript = watermarkLua + `
local n, epoch = mark(KEYS[2], ARGV[1])
return {n, epoch, redis.call('GET', KEYS[1]) or '', 0}`

// marks has what scripts do with the hash of marks. A mark is a number, in a field of the id of its
// process. The function returns the number, and the epoch if there was none before, else ”.
const watermarkLua = `
local function mark(key, id)
  local n = redis.call('HINCRBY', key, id, 1)
  if n > 1 then return n, '' end
  return n, redis.call('HGET', key, '') or '0'
end`

var errReply = errors.New("not an answer of a filter's script")

// stamp is a mark, and the epoch that it was left in.
type watermark struct{ number, epoch uint64 }

// ack is the reply of the scripts that leave a mark.
type watermarkReply struct {
	watermark    watermark // the mark; the epoch only if first
	first        bool      // the process had no mark
	unchanged    bool      // the descriptor is as it was known; raw is then empty
	raw          string    // the descriptor
	lostSegments int64     // segments that were lost
}

// ackOf reads a reply: the number of the mark if there is nothing else to report, or the number,
// the epoch, the descriptor, and how many segments were lost.
func parseWatermarkReply(cmd *redis.Cmd) (r watermarkReply, err error) {
	if n, ok := cmd.Val().(int64); ok {
		return watermarkReply{watermark: watermark{number: uint64(n)}, unchanged: true}, nil
	}
	reply, err := cmd.Slice()
	if err != nil {
		return watermarkReply{}, err
	}
	if len(reply) != 4 {
		return watermarkReply{}, errReply
	}
	n, ok := reply[0].(int64)
	epoch, isText := reply[1].(string)
	if ok = ok && isText; epoch != "" {
		r.first = true
		if r.watermark.epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return watermarkReply{}, errReply
		}
	}
	raw, isRaw := reply[2].(string)
	missing, isCount := reply[3].(int64)
	if !ok || !isRaw || !isCount {
		return watermarkReply{}, errReply
	}
	r.watermark.number, r.raw, r.lostSegments = uint64(n), raw, missing
	return r, nil
}

// encodeHashes is what is announced of keys: 32 bytes each, whatever generation a Replica has.
func encodeHashes(hashes []hash) []byte {
	b := make([]byte, 0, 32*len(hashes))
	for i := range hashes {
		for _, h := range hashes[i] {
			b = binary.BigEndian.AppendUint64(b, h)
		}
	}
	return b
}

// decodeHashes calls f with each key's; what is behind the last whole one is ignored.
func decodeHashes(b []byte, f func(*hash)) {
	var h hash // one, for it escapes
	for ; len(b) >= 32; b = b[32:] {
		for i := range h {
			h[i] = binary.BigEndian.Uint64(b[8*i:])
		}
		f(&h)
	}
}
