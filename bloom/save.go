package bloom

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"sync/atomic"

	"github.com/bits-and-blooms/bloom/v3"
)

// A file is a header, the segments one after the other, each as bits-and-blooms'
// BloomFilter.WriteTo writes it, and the CRC-32C of all that, in 4 bytes. All numbers are
// big-endian.
//
//	0   magic, its last byte the version
//	8   segments, bits of each, bits of a key: 8 bytes each
//	32  capacity, rate (IEEE 754)
//	48  the CRC-32C of what stands before it
const (
	fileMagic   = "caBloom"
	fileVersion = 1
	fileHeader  = 52
	fileSegment = 24 // before the words of a segment: bits, k, and bits again
	fileSum     = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save writes the filter to w, so that Load can read it, in another process or after a restart. All
// keys that were added before Save was called are in the file; keys that are added later may be in
// it or not. The file has State.Bits / 8 bytes, and some. A file of a filter of one segment (up to
// 2^18 bits) can be read by github.com/bits-and-blooms/bloom, too, from byte 52 on.
func (l *Local) Save(w io.Writer) error {
	g := l.holds.Load().active
	if g == nil {
		return fmt.Errorf("bloom: %w", ErrIncomplete)
	}
	if err := g.save(w); err != nil {
		return fmt.Errorf("bloom: saving a filter: %w", err)
	}
	return nil
}

func (g *localGeneration) save(to io.Writer) error {
	sum := crc32.New(castagnoli)
	w := io.MultiWriter(to, sum)
	if _, err := w.Write(g.fileHeader()); err != nil {
		return err
	}
	words := make([]uint64, g.bits/64)
	for s := range g.segments {
		for i := range words {
			words[i] = atomic.LoadUint64(&g.segmentWords(s)[i]) // keys are added meanwhile
		}
		if _, err := bloom.FromWithM(words, uint(g.bits), uint(g.k)).WriteTo(w); err != nil {
			return err
		}
	}
	_, err := to.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

func (g *localGeneration) fileHeader() []byte {
	b := append(make([]byte, 0, fileHeader), fileMagic...)
	b = append(b, fileVersion)
	for _, n := range []uint64{g.segments, g.bits, g.k, g.capacity, math.Float64bits(g.rate)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}
