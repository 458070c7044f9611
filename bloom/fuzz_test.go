package bloom

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// FuzzDecodeHashes: any announced hashes can be added to any filter, and read back the same.
func FuzzDecodeHashes(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(encodeHashes([]bitmap.Hash{bitmap.HashOf("a"), bitmap.HashOf("b")}))
	f.Add(bytes.Repeat([]byte{0xff}, 70))
	shapes := []*bitmap.Bitmap{bitmap.New(bitmap.Shape{Segments: 1, Bits: 64, K: 1}),
		bitmap.New(bitmap.Shape{Segments: 3, Bits: 192, K: 7}),
		bitmap.New(bitmap.Shape{Segments: bitmap.MaxSegments, Bits: 64, K: bitmap.MaxK})}
	f.Fuzz(func(t *testing.T, body []byte) {
		var all []bitmap.Hash
		decodeHashes(body, func(h *bitmap.Hash) { all = append(all, *h) })
		if got := encodeHashes(all); len(all) != len(body)/32 || !bytes.Equal(got, body[:len(body)/32*32]) {
			t.Fatalf("%x is read as %x", body, got)
		}
		for i := range all[:min(len(all), 100)] {
			for _, b := range shapes {
				if b.Add(&all[i]); !b.Has(&all[i]) {
					t.Fatalf("%x is not in %+v", all[i], b.Shape)
				}
			}
		}
	})
}

// FuzzDecodeDescriptor: what is accepted is of bounded size, and means the same when it is written
// again.
func FuzzDecodeDescriptor(f *testing.F) {
	g := newGeneration(bitmap.Shape{Segments: 4, Bits: 1 << 18, K: 7}, 100_000, 0.01)
	for _, d := range []descriptor{{}, {Active: g},
		{Building: g, Old: []generation{*newGeneration(bitmap.Shape{Segments: 1, Bits: 64, K: 1}, 1, 0.5)}}} {
		raw, err := d.encode()
		must(f, err)
		f.Add(raw)
	}
	f.Add(`{"format":2}`)
	f.Add(`{"format":1,"active":{"id":"0123456789abcdef","segments":18446744073709551615,"bits":64,"k":1}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		d, err := decodeDescriptor(raw)
		if err != nil {
			return
		}
		if len(d.generations()) > maxOld+2 {
			t.Fatalf("%d generations", len(d.generations()))
		}
		for _, g := range d.generations() {
			if s := g.shape(); s.Check() != nil || s.Total() > bitmap.MaxSegments*bitmap.MaxBits ||
				len(g.header()) != headerBytes {
				t.Fatalf("%+v", g)
			}
		}
		again, err := d.encode()
		if err != nil {
			t.Fatalf("%q cannot be written again: %v", raw, err)
		}
		if len(again) > maxDescriptorBytes {
			return // it was shorter without what is optional
		}
		e, err := decodeDescriptor(again)
		if err != nil {
			t.Fatalf("%q becomes %q: %v", raw, again, err)
		}
		for i, g := range d.generations() {
			if h := e.generations()[i]; h.header() != g.header() || h.Capacity != g.Capacity || h.Ready != g.Ready ||
				!h.Begun.Equal(g.Begun) {
				t.Fatalf("%+v becomes %+v", g, h)
			}
		}
	})
}

// FuzzTake: for any value of a segment in Redis, no added key is missed: a segment that is not
// whole is treated as lost.
func FuzzTake(f *testing.F) {
	s := bitmap.Shape{Segments: 2, Bits: 192, K: 3}
	g := newGeneration(s, 10, 0.01)
	f.Add([]byte(nil), true)
	f.Add([]byte(g.tag(1)), true)
	f.Add([]byte(g.tag(1)+"bits"), true)
	f.Add([]byte(g.tag(0)), true)
	f.Add(bytes.Repeat([]byte{0x81}, 24), true)
	f.Add([]byte("another's, and longer than it may be, so that it is cut"), false)
	f.Fuzz(func(t *testing.T, body []byte, whole bool) {
		header := []byte(g.header())
		if !whole {
			binary.BigEndian.PutUint64(header[8:], 7)
		}
		tail := g.tag(1)
		if len(body) > 0 && body[0]%2 == 0 {
			tail = g.tag(0)
		}
		size := int(s.Bits / 8)
		if len(body) >= size {
			body = append(body[:size:size], tail...)
		}
		whole = whole && (len(body) == size+tagBytes && tail == g.tag(1) || string(body) == g.tag(1))
		c := newBitmapCopy(g)
		c.setSegment(g, 1, string(header)+string(body))
		for i := range s.Bits {
			set := i/8 < uint64(min(size, len(body))) && body[i/8]&(0x80>>(i%8)) != 0 && string(body) != g.tag(1)
			if got := c.Words[s.Bits/64+i/64]&(1<<(i%64)) != 0; got != (set || !whole) {
				t.Fatalf("bit %d of %x: %v", i, body, got)
			}
		}
		if c.Count() > s.Bits || c.lostSegments() > 1 {
			t.Fatal("another segment was touched")
		}
	})
}
