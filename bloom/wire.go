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

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// descriptor names the generations that a filter has in Redis. It is stored as one JSON string, so
// that it changes as a whole, by a compare-and-swap of all its bytes, and so that people can read
// it. Some names in the JSON are those of the first format: stamp for the revision, hiding for a
// false negative.
type descriptor struct {
	Format   int          `json:"format"`
	Revision string       `json:"stamp"`              // unique to this change
	Active   *generation  `json:"active,omitempty"`   // serves lookups; nil if none does
	Building *generation  `json:"building,omitempty"` // filled by a rebuild; additions go to it once it is ready
	Old      []generation `json:"old,omitempty"`      // to be removed
	// why the last generation was dropped that had refused the key of an existing row
	FalseNegative *falseNegative `json:"hiding,omitempty"`
}

// generation describes the bits of a filter from one rebuild to the next. Its ID is never reused.
type generation struct {
	ID       string    `json:"id"`
	Segments uint64    `json:"segments"`
	Bits     uint64    `json:"bits"`
	K        uint64    `json:"k"`
	Capacity uint64    `json:"capacity"`
	Rate     float64   `json:"rate"`
	Ready    bool      `json:"ready"` // all its segments exist
	Begun    time.Time `json:"begun"` // by the clock of the process that rebuilds

	ServerRuns    []string      `json:"servers,omitempty"` // server runs when it was begun: see Redis.serverRuns
	DeletedBefore uint64        `json:"deleted,omitempty"` // number of deleted rows when it was begun
	RebuildTime   time.Duration `json:"took,omitempty"`    // duration of its rebuild

	Owner string `json:"owner,omitempty"` // Options.Prefix of the Cache that it was built for; "": not known
	Table string `json:"table,omitempty"` // what it was read from; "": not known
}

// format is the format of descriptors and segments.
const format = 1

const (
	headerBytes = 16 // before the bits of a segment
	headerBits  = 8 * headerBytes
	tagBytes    = 8 // after the bits of a segment, or after the header if it has no bits

	maxDescriptorBytes = 256 << 10
	maxOld             = 64

	// revisionBytes is the length of the beginning of a descriptor that identifies it. The text
	// begins with the revision.
	revisionBytes = len(`{"format":1,"stamp":"0123456789abcdef"`)
)

var (
	errDescriptor = errors.New("the descriptor of the filter cannot be read")
	errFormat     = errors.New("the filter has a newer format than this program supports")
)

// newGeneration returns a generation with a new ID.
func newGeneration(s bitmap.Shape, capacity uint64, rate float64) *generation {
	return &generation{ID: newID(), Segments: s.Segments, Bits: s.Bits, K: s.K, Capacity: capacity, Rate: rate,
		Begun: time.Now().UTC().Truncate(time.Millisecond)}
}

func (g *generation) shape() bitmap.Shape {
	return bitmap.Shape{Segments: g.Segments, Bits: g.Bits, K: g.K}
}

// header returns the fixed prefix of each segment. A string with any other prefix does not belong
// to this generation.
func (g *generation) header() string {
	b := make([]byte, 0, headerBytes)
	b = append(b, 0xB0|format, byte(g.K))
	b = binary.BigEndian.AppendUint16(b, uint16(g.Segments-1))
	b = binary.BigEndian.AppendUint32(b, uint32(g.Bits/64))
	id, _ := hex.DecodeString(g.ID) // validated by check
	return string(append(b, id...))
}

// tag returns the fixed suffix of segment s. All segments of a generation have the same header,
// so a string that was copied from another segment, or truncated, differs only in its tag. The
// tag consists of the number of the segment, its complement, and a part of the generation's ID.
// Because of the complement, no tag has all bits of another. A segment without keys is its header
// and its tag, without bits.
func (g *generation) tag(s uint64) string {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, tagBytes), uint16(s))
	b = binary.BigEndian.AppendUint16(b, ^uint16(s))
	id, _ := hex.DecodeString(g.ID) // validated by check
	return string(append(b, id[:4]...))
}

// bitsOf returns the bits in raw, the string of segment s in Redis. The result is empty if the
// segment has no keys. ok is false if raw is not exactly this segment. The scripts check the same
// in Lua (see segmentLua).
func (g *generation) bitsOf(s uint64, raw string) (bits string, ok bool) {
	bits, begins := strings.CutPrefix(raw, g.header())
	bits, ends := strings.CutSuffix(bits, g.tag(s))
	return bits, begins && ends && (bits == "" || uint64(len(bits)) == g.Bits/8)
}

func (g *generation) check() error {
	if id, err := hex.DecodeString(g.ID); err != nil || len(id) != 8 || !(g.Rate >= 0 && g.Rate <= 1) {
		return errDescriptor
	}
	if err := g.shape().Check(); err != nil {
		return fmt.Errorf("%w: %w", errDescriptor, err)
	}
	return nil
}

// generations returns all generations that the descriptor names.
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

// activeID returns the ID of the generation that serves, or "".
func (d *descriptor) activeID() string {
	if d.Active == nil {
		return ""
	}
	return d.Active.ID
}

// writeTargets returns the generations that a key must be added to: the active one and, once its
// segments exist, the one that is being built. Until then, its rebuild has not begun to read the
// table. Old generations need no keys, because a lookup checks that the generation it queries is
// active.
func (d *descriptor) writeTargets() []*generation {
	return slices.DeleteFunc(d.generations(),
		func(g *generation) bool { return g != d.Active && (g != d.Building || !g.Ready) })
}

// retire adds g to the old generations, unless it is nil. Only the segments of an old generation
// matter.
func (d *descriptor) retire(g *generation) {
	if g != nil {
		old := *g
		old.ServerRuns = nil
		d.Old = append(d.Old, old)
	}
}

func (d *descriptor) encode() (string, error) {
	d.Format, d.Revision = format, newID()
	b, err := json.Marshal(d)
	return string(b), err
}

// decodeDescriptor decodes the string that Redis holds. An empty string is a descriptor without
// generations. The sizes of all accepted values are bounded.
func decodeDescriptor(raw string) (d descriptor, err error) {
	if raw == "" {
		return descriptor{}, nil
	}
	if len(raw) > maxDescriptorBytes || json.Unmarshal([]byte(raw), &d) != nil {
		return descriptor{}, errDescriptor // without its text, which another program may have written
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

// copy returns a descriptor that the caller may change. One that cannot be decoded counts as
// empty.
func (c *cachedDescriptor) copy() descriptor {
	d, _ := decodeDescriptor(c.raw)
	return d
}

// segmentKey returns the key of a segment. The slot of a segment depends on its number, so the
// segments are spread over a cluster. The name of a filter never contains "/".
func segmentKey(prefix, name, id string, s uint64) string {
	return prefix + "::bloom:{" + name + "/" + id + "/" + strconv.FormatUint(s, 10) + "}"
}

// cachedDescriptor is the descriptor as it was last read.
type cachedDescriptor struct {
	descriptor
	raw    string
	readAt time.Time
}

// coveredBy reports whether written contains all generations that a key must be added to.
func (d *descriptor) coveredBy(written map[string]bool) bool {
	return !slices.ContainsFunc(d.writeTargets(), func(g *generation) bool { return !written[g.ID] })
}

// The scripts on a segment first check that the string is exactly this segment. If not, they
// return -1: the segment was lost or removed. No process creates it again, so a segment that
// passes the check contains every key that was ever added to it. A bit offset is encoded in 4
// bytes, and counts from the beginning of the string.

// segmentLua defines the functions that the scripts share. Bytes 4 to 7 of the header are the
// number of bits divided by 64, so 8 times that number is the number of bytes. 16 is headerBytes,
// 8 is tagBytes, and 24 is both together. See generation.bitsOf.
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

// lookupScript returns '1' or '0' for each key: whether all its bits are set. ARGV[4] has the bit
// offsets, ARGV[3] of them for each key. ARGV[1] and ARGV[2] of all scripts are the header and
// the tag of the segment.
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

// addScript sets the bits whose offsets are in ARGV[3]. It first allocates all bits of the
// segment, because a string that Redis lets grow takes up to twice the memory it needs.
var addScript = conn.NewScript(segmentLua + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
for i = 1, #ARGV[3], 4 do redis.call('SETBIT', KEYS[1], at(ARGV[3], i), '1') end
return 0`)

// mergeScript does the same as addScript, for a large number of bits. It merges a whole segment,
// which is faster than setting the bits one by one. ARGV[3] contains the bits to set, after
// headerBytes zero bytes. KEYS[2] is a temporary key for them.
var mergeScript = conn.NewScript(segmentLua + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
return 0`)

// countScript counts the bits that are set. BITCOUNT counts the bits between the header and the
// tag: none in a segment without bits. A value of another type counts as a lost segment.
var countScript = conn.NewScript(segmentLua + `
local is, intact = pcall(whole, KEYS[1], ARGV[1], ARGV[2])
if not (is and intact) then return -1 end
return redis.call('BITCOUNT', KEYS[1], 16, -9)`)

// touchScript writes the watermark ARGV[1] to KEYS[2], and returns it with the descriptor
// KEYS[1].
const touchScript = watermarkLua + `
local n, epoch = mark(KEYS[2], ARGV[1])
return {n, epoch, redis.call('GET', KEYS[1]) or '', 0}`

// watermarkLua defines the function mark, which raises a watermark. The watermark of a process is
// a number in the hash of watermarks, in the field of the process's ID. It begins with Redis' time
// in microseconds. mark returns the number, and also the epoch if the process had no watermark,
// otherwise an empty string.
const watermarkLua = `
local function mark(key, id)
  local n = redis.call('HINCRBY', key, id, 1)
  if n > 1 then return n, '' end
  local t = redis.call('TIME')
  n = t[1] * 1000000 + t[2]
  redis.call('HSET', key, id, string.format('%.0f', n))
  return n, redis.call('HGET', key, '') or '0'
end`

var errReply = errors.New("unexpected reply of a filter's script")

// watermark is the watermark of a process, and the epoch in which it was written.
type watermark struct{ number, epoch uint64 }

// watermarkReply is the reply of the scripts that write a watermark.
type watermarkReply struct {
	watermark    watermark // the new watermark; its epoch is set only if first is
	first        bool      // the process had no watermark
	unchanged    bool      // the descriptor is the cached one, and raw is empty
	raw          string    // the descriptor
	lostSegments int64     // number of lost segments
}

// parseWatermarkReply parses a reply: the number of the watermark if there is nothing else to
// report, otherwise the number, the epoch, the descriptor, and the number of lost segments.
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

// encodeHashes encodes keys for an announcement, in 32 bytes each. The encoding does not depend
// on the generation that a Replica has copied.
func encodeHashes(hashes []bitmap.Hash) []byte {
	b := make([]byte, 0, 32*len(hashes))
	for i := range hashes {
		for _, h := range hashes[i] {
			b = binary.BigEndian.AppendUint64(b, h)
		}
	}
	return b
}

// decodeHashes calls f with the hash of each key in b. It ignores incomplete bytes at the end.
func decodeHashes(b []byte, f func(*bitmap.Hash)) {
	var h bitmap.Hash // one for all calls, because it escapes to the heap
	for ; len(b) >= 32; b = b[32:] {
		for i := range h {
			h[i] = binary.BigEndian.Uint64(b[8*i:])
		}
		f(&h)
	}
}

// newID returns a random identifier.
func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
