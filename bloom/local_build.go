package bloom

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bloom/v3"

	"github.com/cacheaside/cacheaside/internal/errtext"
)

// Rebuild reads all keys of the source into a new filter, and replaces the present one when the
// new one is complete. During the rebuild the present filter serves lookups, and Adds go to both.
// nil options are the defaults, except that Rebuild does not wait before it reads
// (RebuildOptions.Settle): all callers of Admit are in this process, and call committed.
//
// One Rebuild or Load runs at a time: while another runs, Rebuild returns ErrRebuilding at once.
// A Rebuild that fails leaves nothing behind, and the next one starts from the beginning. Like
// Redis.Rebuild, Rebuild calls a source that fails again, and checks the new filter before it
// replaces the present one.
func (l *Local) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	if !l.rebuilding.TryLock() {
		return Report{}, errtext.Errorf("bloom: %w", ErrRebuilding)
	}
	defer l.rebuilding.Unlock()
	var o RebuildOptions
	if options != nil {
		o = *options
	}
	o.Settle = cmp.Or(o.Settle, -1)
	report, err := rebuild(ctx, l, source, &o)
	if err != nil {
		l.discard()
		l.counts.countRejection(err)
		return report, errtext.Errorf("bloom: the rebuild: %w", err)
	}
	report.State, _ = l.State(ctx)
	return report, nil
}

// build begins a new generation.
func (l *Local) build(ctx context.Context, capacity uint64) (next building, about uint64, err error) {
	if l.closed.Load() {
		return nil, 0, errClosed
	}
	present, _ := l.State(ctx)
	if capacity == 0 {
		capacity = grownCapacity(l.capacity, l.rate, present)
	}
	s, err := shapeFor(capacity, l.rate)
	if err != nil {
		return nil, 0, err
	}
	return l.begin(l.newGeneration(newBitmap(s), capacity, l.rate)), present.Keys, nil
}

// begin makes additions also go to g.
func (l *Local) begin(g *localGeneration) localBuilding {
	l.change(func(h *localState) { h.building, g.falseNegativeID = g, h.falseNegative.id() })
	return localBuilding{l, g}
}

// localBuilding is a generation that is being filled.
type localBuilding struct {
	filter *Local
	g      *localGeneration
}

func (l localBuilding) add(_ context.Context, keys []string) error {
	if l.filter.closed.Load() {
		return errClosed
	}
	l.g.addAll(hashesOf(keys))
	return nil
}

func (l localBuilding) check(ctx context.Context, allowFewer bool, sampledKeys []string) error {
	filter, g := l.filter, l.g
	g.sampledKeys = sampledKeys
	if !allowFewer {
		present, _ := filter.State(ctx)
		if err := checkKeyCount(present, g.shape, g.count()); err != nil {
			return err
		}
	}
	return filter.checkers.accept(ctx, sampledKeys, g.holds)
}

// drop ends additions to the generation.
func (l localBuilding) drop(context.Context) error {
	l.filter.discard()
	return nil
}

// discard ends additions to the generation that is being built, if there is one.
func (l *Local) discard() {
	l.change(func(h *localState) { h.building = nil })
}

func (l localBuilding) finish(context.Context) (err error) {
	l.g.rebuildTime = time.Since(l.g.begun)
	l.filter.change(func(h *localState) {
		err = nil
		if last := h.falseNegative; last.id() != l.g.falseNegativeID && !l.g.has(&last.Key) {
			err = errLacksReported
			return
		}
		h.active, h.building = l.g, nil
	})
	return err
}

// A file consists of a header, the segments one after the other, each in the format of
// BloomFilter.WriteTo of bits-and-blooms, and the CRC-32C of all of these in 4 bytes. All numbers
// are big-endian. The header:
//
//	0   magic, whose last byte is the version
//	8   number of segments, bits per segment, bits per key: 8 bytes each
//	32  capacity, rate (IEEE 754): 8 bytes each
//	48  CRC-32C of the preceding bytes
const (
	fileMagic   = "caBloom"
	fileVersion = 1
	fileHeader  = 52
	fileSegment = 24 // before the words of a segment: bits, k, and bits again
	fileSum     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save writes the filter to w in the format of Load, for another process or for the time after a
// restart. The file contains all keys that were added before Save was called. It may contain keys
// that are added while Save runs. Its size is a little more than State.Bits / 8 bytes. If the
// filter has one segment (up to 2^18 bits), github.com/bits-and-blooms/bloom can read the file
// too, from byte 52 on.
func (l *Local) Save(w io.Writer) error {
	g := l.current.Load().active
	if g == nil {
		return errtext.Errorf("bloom: %w", ErrIncomplete)
	}
	if err := g.save(w); err != nil {
		return errtext.Errorf("bloom: saving a filter: %w", err)
	}
	return nil
}

func (l *localGeneration) save(to io.Writer) error {
	sum := crc32.New(castagnoli)
	w := io.MultiWriter(to, sum)
	if _, err := w.Write(l.fileHeader()); err != nil {
		return err
	}
	words := make([]uint64, l.bits/64)
	for s := range l.segments {
		for i := range words {
			words[i] = atomic.LoadUint64(&l.segmentWords(s)[i]) // atomic: keys may be added concurrently
		}
		if _, err := bloom.FromWithM(words, uint(l.bits), uint(l.k)).WriteTo(w); err != nil {
			return err
		}
	}
	_, err := to.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

func (l *localGeneration) fileHeader() []byte {
	b := append(make([]byte, 0, fileHeader), fileMagic...)
	b = append(b, fileVersion)
	for _, n := range []uint64{l.segments, l.bits, l.k, l.capacity, math.Float64bits(l.rate)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Load replaces the keys, the capacity and the rate of the filter with those in a file that Save
// has written. The filter then refuses all other keys, so the file must contain all keys that
// were added before Load is called. If keys were added since the file was saved, add them again
// before relying on the filter, or use Rebuild instead. Keys that are added while Load runs are
// in the filter. For MaintainOptions.Every, the age of the filter counts from the Load, not from
// the Save.
//
// Load checks the new filter like a Rebuild (ErrFewer, ErrHides). For a set that has become
// smaller, use a Rebuild with RebuildOptions.AllowFewer, or a new Local. While another Rebuild or
// Load runs, Load returns ErrRebuilding.
//
// Load reads no more of r than Save has written, and verifies all of it. The memory that it
// allocates is proportional to what it has read. Limit a file from an untrusted source with an
// io.LimitReader. If Load returns an error, the filter is unchanged.
func (l *Local) Load(r io.Reader) error {
	err := l.load(r)
	if err != nil {
		l.counts.countRejection(err)
		return errtext.Errorf("bloom: loading a filter: %w", err)
	}
	return nil
}

func (l *Local) load(r io.Reader) error {
	if !l.rebuilding.TryLock() {
		return ErrRebuilding
	}
	defer l.rebuilding.Unlock()
	defer l.discard() // after an error, or a panic of r
	early := &localGeneration{}
	l.begin(early)
	g, err := l.readFile(r)
	if err != nil {
		return err
	}
	b := l.begin(g)
	g.addAll(early.earlyHashes()) // all of them: since the second begin, keys are added to g
	ctx := context.Background()
	if err := b.check(ctx, false, nil); err != nil {
		return err
	}
	return b.finish(ctx)
}

// readFull reads exactly len(b) bytes.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	return truncated(err)
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: truncated", ErrCorrupt)
	}
	return err
}

func (l *Local) readFile(r io.Reader) (*localGeneration, error) {
	header := make([]byte, fileHeader)
	if err := readFull(r, header); err != nil {
		return nil, err
	}
	s, capacity, rate, err := readHeader(header)
	if err != nil {
		return nil, err
	}
	var rest bytes.Buffer // grows with the bytes that were read, not with the size in the header
	if _, err := io.CopyN(&rest, r, int64(s.segments*(fileSegment+s.bits/8)+fileSum)); err != nil {
		return nil, truncated(err)
	}
	body := rest.Bytes()
	body, sum := body[:len(body)-fileSum], binary.BigEndian.Uint32(body[len(body)-fileSum:])
	if crc32.Update(crc32.Checksum(header, castagnoli), castagnoli, body) != sum {
		return nil, fmt.Errorf("%w: wrong checksum", ErrCorrupt)
	}
	words := make([]uint64, 0, s.total()/64)
	for segment := range slices.Chunk(body, int(fileSegment+s.bits/8)) {
		for i, want := range []uint64{s.bits, s.k, s.bits} {
			if binary.BigEndian.Uint64(segment[8*i:]) != want {
				return nil, fmt.Errorf("%w: a segment has the wrong size", ErrCorrupt)
			}
		}
		for bits := segment[fileSegment:]; len(bits) > 0; bits = bits[8:] {
			words = append(words, binary.BigEndian.Uint64(bits))
		}
	}
	return l.newGeneration(bitmapOf(s, words), capacity, rate), nil
}

func readHeader(b []byte) (s shape, capacity uint64, rate float64, err error) {
	number := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	switch {
	case string(b[:len(fileMagic)]) != fileMagic:
		return s, 0, 0, ErrCorrupt
	case b[len(fileMagic)] > fileVersion:
		return s, 0, 0, ErrVersion
	case b[len(fileMagic)] != fileVersion, crc32.Checksum(b[:48], castagnoli) != binary.BigEndian.Uint32(b[48:]):
		return s, 0, 0, fmt.Errorf("%w: invalid header", ErrCorrupt)
	}
	s = shape{segments: number(8), bits: number(16), k: number(24)}
	capacity, rate = number(32), math.Float64frombits(number(40))
	if err := s.check(); err != nil {
		return s, 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !(rate >= minRate && rate <= maxRate) || capacity == 0 || capacity > maxSegments*maxBits/64 {
		return s, 0, 0, fmt.Errorf("%w: invalid header", ErrCorrupt)
	}
	return s, capacity, rate, nil
}
