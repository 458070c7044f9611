package bloom

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
)

// Load replaces what the filter holds by what Save has written: its keys, capacity and rate. To
// call Load is also to say that the file is complete: the filter answers "no" from then on. So the
// file must have all keys that were added before Load is called. Keys that were added since the
// file was saved must be added again before anybody relies on the filter, or the filter be rebuilt
// instead. Keys that are added while Load runs are in the filter as well. For MaintainOptions.Every
// the filter is as old as the Load, not as the file.
//
// The filter is checked before it takes its place, as one that was rebuilt: it must hold a key,
// nine tenths of those of the present one (ErrFewer), and those of all rows that loaders of this
// process have read (ErrHides). A Rebuild with RebuildOptions.AllowFewer, or a new Local, is for a
// set that has become smaller.
//
// Load is a Rebuild from a file. Additions go to the new filter from when Load begins, and while
// another Rebuild or Load runs, Load returns ErrRebuilding.
//
// Load reads no more of r than Save has written, checks all of it, and allocates no more than some
// times what it has read; bound a file from an untrusted source by an io.LimitReader. If Load
// returns an error, the filter is as it was.
func (l *Local) Load(r io.Reader) error {
	err := l.load(r)
	if err != nil {
		l.counts.refuse(err)
		return fmt.Errorf("bloom: loading a filter: %w", err)
	}
	return nil
}

func (l *Local) load(r io.Reader) error {
	if !l.rebuilding.TryLock() {
		return ErrRebuilding
	}
	defer l.rebuilding.Unlock()
	defer l.change(func(h *holding) bool { // after an error, or a panic of r
		h.building = nil
		return true
	})
	early := &localGeneration{}
	l.begin(early)
	g, err := l.readFile(r)
	if err != nil {
		return err
	}
	b := l.begin(g)
	g.addAll(early.noted()) // all: who adds after begin adds to g
	ctx := context.Background()
	if err := b.check(ctx, false, nil); err != nil {
		return err
	}
	return b.finish(ctx)
}

// take reads all of b.
func take(r io.Reader, b []byte) error {
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
	if err := take(r, header); err != nil {
		return nil, err
	}
	s, capacity, rate, err := readHeader(header)
	if err != nil {
		return nil, err
	}
	var rest bytes.Buffer // which grows with what was read, not with what the header says
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
				return nil, fmt.Errorf("%w: a segment is of another size", ErrCorrupt)
			}
		}
		for bits := segment[fileSegment:]; len(bits) > 0; bits = bits[8:] {
			words = append(words, binary.BigEndian.Uint64(bits))
		}
	}
	g := l.newGeneration(bitmapOf(s, words), capacity, rate)
	g.set.Store(g.count())
	return g, nil
}

func readHeader(b []byte) (s shape, capacity uint64, rate float64, err error) {
	number := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	switch {
	case string(b[:len(fileMagic)]) != fileMagic:
		return s, 0, 0, ErrCorrupt
	case b[len(fileMagic)] > fileVersion:
		return s, 0, 0, ErrVersion
	case b[len(fileMagic)] != fileVersion, crc32.Checksum(b[:48], castagnoli) != binary.BigEndian.Uint32(b[48:]):
		return s, 0, 0, fmt.Errorf("%w: the header", ErrCorrupt)
	}
	s = shape{segments: number(8), bits: number(16), k: number(24)}
	capacity, rate = number(32), math.Float64frombits(number(40))
	if err := s.check(); err != nil {
		return s, 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !(rate >= minRate && rate <= maxRate) || capacity == 0 || capacity > maxSegments*maxBits/64 {
		return s, 0, 0, fmt.Errorf("%w: the header", ErrCorrupt)
	}
	return s, capacity, rate, nil
}
