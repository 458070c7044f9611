package codec_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/msgpack"
)

// perByte bounds the allocations of a decoding for each byte of a payload (decompressed): an
// element of one byte may become a whole struct, here of up to 88 bytes, and the same again each
// time the slice grows.
const (
	perByte = 512
	fixed   = 256 << 10
)

type row struct {
	A, B, C int64
	S       string
	L       []int
	M       map[string]int
	P       *row
}

func allocated(f func()) int64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return int64(b.TotalAlloc - a.TotalAlloc)
}

func bomb[V any](t *testing.T, name string, p codec.Payload, maxBytes int) {
	t.Helper()
	c, err := codec.New[V](msgpack.Codec, 0, maxBytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := int64(len(p.Bytes))
	if n, err := s2.DecodedLen(p.Bytes); p.Compressed && err == nil && n <= maxBytes {
		plain = int64(n)
	}
	n := allocated(func() { decode(c, p) })
	if n > fixed+perByte*plain {
		t.Errorf("%s into %T: %d bytes allocated for %d", name, *new(V), n, plain)
	}
	t.Logf("%-32s %-24T %9d bytes: %10d allocated", name, *new(V), plain, n)
}

func bombAll(t *testing.T, name string, p codec.Payload, maxBytes int) {
	bomb[any](t, name, p, maxBytes)
	bomb[row](t, name, p, maxBytes)
	bomb[map[string]any](t, name, p, maxBytes)
	if len(p.Bytes) > 1<<21 {
		return // enough, for what takes long to scan
	}
	bomb[string](t, name, p, maxBytes)
	bomb[[]byte](t, name, p, maxBytes)
	bomb[[]int64](t, name, p, maxBytes)
	bomb[[]any](t, name, p, maxBytes)
	bomb[[]string](t, name, p, maxBytes)
	bomb[[]row](t, name, p, maxBytes)
	bomb[[]*row](t, name, p, maxBytes)
	bomb[map[string]row](t, name, p, maxBytes)
	bomb[map[int]string](t, name, p, maxBytes)
	bomb[time.Time](t, name, p, maxBytes)
	bomb[[][]int](t, name, p, maxBytes)
}

// A few bytes do not make the decoder allocate gigabytes, nor overflow the stack, which would end
// the process.
func TestBombs(t *testing.T) {
	const max = 64 << 20
	deep := 1_000_000
	if testenv.Accepting {
		deep = 10_000_000
	}
	rep := bytes.Repeat
	repeated := func(head string, unit string, n int) []byte { return append([]byte(head), rep([]byte(unit), n)...) }
	for name, b := range map[string][]byte{
		"array32":               []byte("\xdd\xff\xff\xff\xff"),
		"array16":               []byte("\xdc\xff\xff"),
		"map32":                 []byte("\xdf\xff\xff\xff\xff"),
		"map16":                 []byte("\xde\xff\xff"),
		"str32":                 []byte("\xdb\xff\xff\xff\xff"),
		"bin32":                 []byte("\xc6\xff\xff\xff\xff"),
		"ext32":                 []byte("\xc9\xff\xff\xff\xff\xff"),
		"map32 in ext":          []byte("\xd7\xff\xdf\xff\xff\xff\xff\x00\x00\x00"),
		"array32 in array32":    repeated("", "\xdd\x00\x0f\x42\x3f", 900),
		"array32 beside":        repeated("\xdc\x07\xd0", "\xdd\x00\x0f\x42\x3f", 2000),
		"map32 beside":          repeated("\xdc\x07\xd0", "\xdf\x00\x0f\x42\x3f", 2000),
		"str32 beside":          repeated("\xdc\x07\xd0", "\xdb\x00\x0f\x42\x3f", 2000),
		"1 too few":             repeated("\xdd\x00\x01\x00\x01", "\x00", 1<<16),
		"skipped, nested":       repeated("\x81\xa1x", "\x91", deep),
		"nested arrays":         repeated("", "\x91", deep),
		"nested maps":           repeated("", "\x81\xa1P", deep),
		"nested keys":           repeated("", "\x81", deep),
		"nested and whole":      append(repeated("", "\x91", 10_000), 0),
		"nested maps, whole":    append(repeated("", "\x81\xa1P", 10_000), 0x80),
		"skipped and whole":     append(repeated("\x81\xa1x", "\x91", 10_000-1), 0),
		"nils":                  repeated("\xdd\x00\x01\x00\x00", "\xc0", 1<<16),
		"empty maps":            repeated("\xdd\x00\x01\x00\x00", "\x80", 1<<16),
		"empty arrays":          repeated("\xdd\x00\x01\x00\x00", "\x90", 1<<16),
		"zeros":                 repeated("\xdd\x00\x01\x00\x00", "\x00", 1<<16),
		"map of small":          repeated("\xdf\x00\x00\x80\x00", "\xa0\x80", 1<<15),
		"arrays with one each":  repeated("\xdd\x00\x00\x80\x00", "\x91\x00", 1<<15),
		"a key again and again": repeated("\xdf\x00\x00\x80\x00", "\xa1L\x91\x00", 1<<15),
	} {
		bombAll(t, "MsgPack: "+name, codec.Payload{Codec: codec.MsgPack, Bytes: b}, max)
	}
	for name, b := range map[string][]byte{
		"nested arrays":   rep([]byte("["), 1_000_000),
		"nested objects":  rep([]byte(`{"P":`), 1_000_000),
		"skipped, nested": append([]byte(`{"x":`), rep([]byte("["), 1_000_000)...),
		"nulls":           append(append([]byte("[null"), rep([]byte(",null"), 1<<16)...), ']'),
		"empty objects":   append(append([]byte("[{}"), rep([]byte(",{}"), 1<<16)...), ']'),
		"zeros":           append(append([]byte("[0"), rep([]byte(",0"), 1<<16)...), ']'),
	} {
		bombAll(t, "JSON: "+name, codec.Payload{Codec: codec.JSON, Bytes: b}, max)
	}
}

func TestCompressionBombs(t *testing.T) {
	claims := func(n uint64) []byte { return append(binary.AppendUvarint(nil, n), 0) }
	for _, n := range []uint64{limit + 1, 1 << 31, 1<<32 - 1, 1 << 40, 1<<64 - 1} {
		c := must[string](t, 0)
		var err error
		got := allocated(func() {
			_, err = decode(c, codec.Payload{Codec: codec.Raw, Compressed: true, Bytes: claims(n)})
		})
		if err == nil || n < 1<<32 && !errors.Is(err, codec.ErrTooLarge) || got > 64<<10 {
			t.Errorf("%d claimed: %v, %d bytes allocated", n, err, got)
		}
	}
	// What the block holds is not what it claims.
	b := s2.Encode(nil, []byte(strings.Repeat("abc", 1000)))
	for _, n := range []uint64{0, 1, 2999, 3001, limit} {
		lie := append(binary.AppendUvarint(nil, n), b[2:]...)
		for _, id := range ids {
			if v, err := decode(must[string](t, 0),
				codec.Payload{Codec: id, Compressed: true, Bytes: lie}); err == nil || v != "" {
				t.Error(n, id, len(v), err)
			}
		}
	}
	if v, err := decode(must[string](t, 0), codec.Payload{Codec: codec.Raw, Compressed: true, Bytes: b}); err != nil ||
		len(v) != 3000 {
		t.Error(err)
	}
	for _, b := range [][]byte{nil, {}, {0x80}, rep0x80()} {
		if _, err := decode(must[string](t, 0),
			codec.Payload{Codec: codec.Raw, Compressed: true, Bytes: b}); err == nil {
			t.Errorf("%x", b)
		}
	}
	// A bomb in a bomb.
	inner := s2.Encode(nil, bytes.Repeat([]byte{0x91}, limit))
	bombAll(t, fmt.Sprintf("%d bytes compressed", len(inner)),
		codec.Payload{Codec: codec.MsgPack, Compressed: true, Bytes: inner}, limit)
}

func rep0x80() []byte { return bytes.Repeat([]byte{0x80}, 20) }
