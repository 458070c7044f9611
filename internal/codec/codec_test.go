package codec_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
)

const limit = 1 << 20

var (
	ids    = []codec.ID{codec.JSON, codec.MsgPack, codec.Binary, codec.Raw, user}
	aboves = []int{0, 1, 64, 1 << 30}
)

type (
	named  string
	base   struct{ A int }
	Opt    struct{ O string }
	status uint8

	nested struct {
		base
		*Opt
		Name     string            `json:"n"`
		Tags     []string          `json:"tags,omitempty"`
		Map      map[string]int    `msgpack:"m"`
		Next     *nested           `json:"next"`
		Bytes    []byte            `json:"b"`
		Array    [3]byte           `json:"arr"`
		Time     time.Time         `json:"t"`
		Addr     netip.Addr        `json:"addr"`
		Wait     time.Duration     `json:"w"`
		U        uint64            `json:"u"`
		I        int64             `json:"i"`
		F32      float32           `json:"f32"`
		F        float64           `json:"f"`
		Status   status            `json:"s"`
		Kind     named             `json:"k"`
		Ptr      **int             `json:"p"`
		Ints     map[int]bool      `json:"ints"`
		Any      any               `json:"any"`
		Rows     []base            `json:"rows"`
		Empty    struct{}          `json:"e"`
		Nils     []*base           `json:"nils"`
		Dict     map[string]any    `json:"dict"`
		Deep     map[string]nested `json:"deep"`
		PtrSlice *[]int            `json:"ps"`
	}
)

func TestRoundTrips(t *testing.T) {
	i := 7
	pi := &i
	full := nested{
		base: base{1}, Opt: &Opt{"o"}, Name: "näme", Tags: []string{"", "x"}, Map: map[string]int{"a": -1},
		Next:  &nested{Name: "n"},
		Bytes: []byte{0, 255}, Array: [3]byte{1, 2, 3}, Time: time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC),
		Addr: netip.MustParseAddr("::1"),
		Wait: time.Hour, U: math.MaxUint64, I: math.MinInt64, F32: 1.5, F: math.Pi, Status: 3, Kind: "k", Ptr: &pi,
		Ints: map[int]bool{-1: true},
		Any:  "any", Rows: []base{{1}, {2}}, Nils: []*base{nil, {1}},
		Dict: map[string]any{"a": map[string]any{"b": []any{"c", nil, 1.5, true}}},
		Deep: map[string]nested{"x": {Name: "y"}}, PtrSlice: &[]int{1, 2},
	}
	check(t, "")
	check(t, "hello")
	check(t, "\x00\xc3\xa4")
	check(t, strings.Repeat("long ", 5000))
	check(t, []byte(nil))
	check(t, []byte{})
	check(t, []byte{0, 255, '{'})
	check(t, bytes.Repeat([]byte{7}, 70_000))
	check(t, named("x"))
	check(t, true)
	check(t, 0)
	check(t, -42)
	check(t, int8(math.MinInt8))
	check(t, int64(math.MinInt64))
	check(t, uint64(math.MaxUint64))
	check(t, float32(1.25))
	check(t, math.MaxFloat64)
	check(t, time.Hour)
	check(t, status(200))
	check(t, time.Time{})
	check(t, time.Date(1812, 1, 2, 3, 4, 5, 6, time.UTC))
	check(t, time.Date(9999, 1, 2, 3, 4, 5, 6, time.UTC))
	check(t, pi)
	check(t, (*int)(nil))
	check(t, &pi)
	check(t, []int(nil))
	check(t, []int{})
	check(t, make([]int, 5000)) // more than the library allocates at once
	check(t, []string{"a", "", "b"})
	check(t, [3]string{"a"})
	check(t, map[string]int(nil))
	check(t, map[string]int{})
	check(t, map[string]int{"a": 1, "": 2})
	check(t, map[int]string{-1: "x"})
	check(t, map[string]any{"s": "x", "f": 1.5, "l": []any{true, nil}, "m": map[string]any{}})
	check(t, any(nil))
	check(t, any("x"))
	check(t, any([]any{1.5, "a"}))
	check(t, struct{}{})
	check(t, []struct{}{{}, {}})
	check(t, json.RawMessage(`{"a":1}`))
	check(t, base{5})
	check(t, &base{5})
	check(t, (*base)(nil))
	check(t, []*base{nil, {1}})
	check(t, nested{})
	check(t, full)
	check(t, &full)
	check(t, []nested{full, {}})
	check(t, netip.MustParseAddr("10.0.0.1"))
	check(t, big.NewInt(1<<40))
	check(t, (*big.Int)(nil))
	check(t, url.URL{Host: "x", Path: "/y"})
	check(t, &url.URL{Host: "x", Path: "/y"})
	check(t, (*url.URL)(nil))
	check(t, point{1, 2})
	check(t, &point{1, 2})
	check(t, (*point)(nil))
}

// check asserts that what any Codec of V writes, each Codec of V reads that has the codec of it.
func check[V any](t *testing.T, v V) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", v), func(t *testing.T) {
		readers := make(map[codec.ID]*codec.Codec[V])
		for _, id := range append(ids, 0) {
			if c, err := codec.New[V](by(id), 0, limit, nil); err == nil && carries[V](id) {
				readers[id] = c
			}
		}
		if len(readers) < 2 {
			t.Fatal("no codecs")
		}
		for _, id := range append(ids, 0) {
			for _, above := range aboves {
				w, err := codec.New[V](by(id), above, limit, nil)
				if err != nil || !carries[V](id) {
					continue
				}
				p, err := w.Encode(v)
				if err != nil {
					t.Fatalf("%v: %v", id, err)
				}
				for by, r := range readers {
					p.Bytes = bytes.Clone(p.Bytes)
					got, err := decode(r, p)
					if by != p.Codec && (p.Codec == codec.MsgPack || p.Codec == user) {
						if err == nil || !reflect.ValueOf(&got).Elem().IsZero() {
							t.Fatalf("%v has read what %v has written: %#v, %v", by, p.Codec, got, err)
						}
						continue
					}
					if err != nil || !reflect.DeepEqual(got, v) {
						t.Fatalf("%v, above %d: got %#v, %v\nwant %#v\npayload %+v", id, above, got, err, v, p)
					}
				}
			}
		}
	})
}

func carries[V any](id codec.ID) bool {
	return codec.Check(reflect.TypeFor[V](), by(id), false) == nil
}

func TestDefaultCodec(t *testing.T) {
	for _, c := range []struct{ got, want codec.ID }{
		{writes(t, "x"), codec.Raw},
		{writes(t, []byte("x")), codec.Raw},
		{writes(t, named("x")), codec.JSON},
		{writes(t, json.RawMessage("1")), codec.JSON},
		{writes(t, time.Time{}), codec.JSON},
		{writes[any](t, "x"), codec.JSON},
		{writes(t, 1), codec.JSON},
	} {
		if c.got != c.want {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}

// writes returns the ID of the default codec for values like v.
func writes[V any](t *testing.T, v V) codec.ID {
	t.Helper()
	p, err := must[V](t, 0).Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return p.Codec
}

func must[V any](t testing.TB, id codec.ID) *codec.Codec[V] {
	t.Helper()
	c, err := codec.New[V](by(id), 0, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// decode is Decode, with the zero V where that has none.
func decode[V any](c *codec.Codec[V], p codec.Payload) (v V, err error) {
	value, err := c.Decode(p)
	if value != nil {
		v = *value
	}
	return v, err
}

func refused[V any](t *testing.T, id codec.ID, want string) {
	t.Helper()
	if c, err := codec.New[V](by(id), 0, limit, nil); err == nil || c != nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v of %v: %v, want %q", id, reflect.TypeFor[V](), err, want)
	}
	if id >= codec.JSON && id <= codec.Raw {
		if v, err := decode(must[V](t, codec.JSON), codec.Payload{Codec: id, Bytes: []byte{0x80}}); err == nil ||
			!reflect.ValueOf(&v).Elem().IsZero() {
			t.Errorf("%v decoded a %v: %v", id, reflect.TypeFor[V](), err)
		}
	}
}

func TestRefused(t *testing.T) {
	refused[int](t, codec.Raw, "Raw is for string and []byte, not for int")
	refused[named](t, codec.Raw, "not for codec_test.named")
	refused[json.RawMessage](t, codec.Raw, reflect.TypeFor[json.RawMessage]().String())
	refused[*string](t, codec.Raw, "*string")
	refused[any](t, codec.Raw, "interface")
	refused[string](t, codec.Binary, "string")
	refused[base](t, codec.Binary, "base")
	refused[any](t, codec.Binary, "interface")
	refused[**point](t, codec.Binary, "point")
	refused[interface{ MarshalBinary() ([]byte, error) }](t, codec.Binary, "interface")
	refused[onlyMarshals](t, codec.Binary, "onlyMarshals")
	refused[*onlyMarshals](t, codec.Binary, "onlyMarshals")
	refused[int](t, 5, "unknown codec 5")
	refused[int](t, 255, "unknown codec 255")
	for _, n := range []int{0, -1} {
		if _, err := codec.New[int](nil, 0, n, nil); err == nil {
			t.Error("maxBytes", n)
		}
	}
	if _, err := codec.New[int](nil, -1, 1, nil); err == nil {
		t.Error("compressAbove -1")
	}
	if _, err := decode(must[int](t, 0), codec.Payload{Codec: 9, Bytes: []byte("1")}); err == nil {
		t.Error("codec 9")
	}
	if _, err := decode(must[int](t, 0), codec.Payload{Bytes: []byte("1")}); err == nil {
		t.Error("codec 0")
	}
}

// IDs are in entries that other versions of a program have written.
func TestFormatStays(t *testing.T) {
	for _, c := range []struct {
		id   codec.ID
		num  uint8
		want string
	}{
		{codec.JSON, 1, `{"X":1,"Y":2}`},
		{codec.MsgPack, 2, "\x82\xa1X\x01\xa1Y\x02"},
		{codec.Binary, 3, "1,2"},
	} {
		var p codec.Payload
		var err error
		if c.id == codec.Binary {
			p, err = must[point](t, c.id).Encode(point{1, 2})
		} else {
			p, err = must[plain](t, c.id).Encode(plain{1, 2})
		}
		if err != nil || uint8(p.Codec) != c.num || string(p.Bytes) != c.want || p.Compressed {
			t.Errorf("%v: %q, %v, %v", c.id, p.Bytes, p.Codec, err)
		}
	}
	if p, err := must[string](t, 0).Encode("x"); err != nil || p.Codec != 4 || string(p.Bytes) != "x" {
		t.Error(p, err)
	}
	type tagged struct {
		A int `msgpack:"m" codec:"c" json:"j"`
		B int `codec:"c2" json:"j2"`
		C int `json:"j3,omitempty"`
		D int `msgpack:"-"`
		E int
	}
	p, err := must[tagged](t, codec.MsgPack).Encode(tagged{1, 2, 0, 4, 5})
	if want := "\x83\xa1m\x01\xa2c2\x02\xa1E\x05"; err != nil || string(p.Bytes) != want {
		t.Errorf("%q, %v", p.Bytes, err)
	}
}

// Nil stays distinct from empty in each codec.
func TestNilIsNotEmpty(t *testing.T) {
	for _, id := range []codec.ID{codec.Raw, codec.JSON, codec.MsgPack, user} {
		c := must[[]byte](t, id)
		for _, v := range [][]byte{nil, {}} {
			p, err := c.Encode(v)
			got, err2 := decode(c, p)
			if err != nil || err2 != nil || (got == nil) != (v == nil) || len(got) != 0 {
				t.Error(id, v == nil, got == nil, err, err2)
			}
		}
	}
	if got, err := decode(must[[]byte](t, 0), codec.Payload{Codec: codec.Raw}); err != nil || got == nil {
		t.Error("an empty payload is an empty value", got, err)
	}
}

func TestRawIsNotCopied(t *testing.T) {
	c := must[[]byte](t, 0)
	in := append(make([]byte, 0, 100), "abc"...)
	v, err := decode(c, codec.Payload{Codec: codec.Raw, Bytes: in})
	if err != nil || &v[0] != &in[0] || cap(v) != 3 {
		t.Error("copied, or more than the payload can be written to", err, cap(v))
	}
	p, err := c.Encode(in)
	if err != nil || &p.Bytes[0] != &in[0] {
		t.Error("copied", err)
	}
	s := must[string](t, 0)
	str, err := s.Decode(codec.Payload{Codec: codec.Raw, Bytes: in})
	in[0] = 'X'
	if err != nil || *str != "abc" {
		t.Error("a string changed", str, err)
	}
}

func TestTrailingBytes(t *testing.T) {
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, user} {
		c := must[map[string]any](t, id)
		p, err := c.Encode(map[string]any{"a": "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, tail := range []string{"x", "\xc0", "\x00", "{}", "]", "}"} {
			if v, err := decode(c, codec.Payload{Codec: id,
				Bytes: append(bytes.Clone(p.Bytes), tail...)}); err == nil || v != nil {
				t.Errorf("%v with %q: %v", id, tail, v)
			}
		}
		for n := range p.Bytes {
			if v, err := decode(c, codec.Payload{Codec: id, Bytes: p.Bytes[:n]}); err == nil || v != nil {
				t.Errorf("%v cut to %d: %v", id, n, v)
			}
		}
	}
}

// A payload of another type is an error and the zero value, not what had been decoded by then.
func TestNothingHalfDecoded(t *testing.T) {
	type other struct {
		A int
		B string
	}
	type want struct {
		A int
		B int
	}
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, user} {
		p, err := must[other](t, id).Encode(other{5, "x"})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := decode(must[want](t, id), p); err == nil || v != (want{}) {
			t.Error(id, v, err)
		}
		if v, err := decode(must[*want](t, id), p); err == nil || v != nil {
			t.Error(id, v, err)
		}
		p, err = must[int](t, id).Encode(300)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := decode(must[int8](t, id), p); err == nil || v != 0 {
			t.Error(id, v, err)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, codec.Raw, user} {
		for _, above := range []int{0, 1} {
			c, _ := codec.New[string](by(id), above, 100, nil)
			fits := strings.Repeat("x", 100-map[codec.ID]int{codec.JSON: 2, codec.MsgPack: 2, user: 2}[id])
			if p, err := c.Encode(fits); err != nil {
				t.Error(id, err)
			} else if v, err := decode(c, p); err != nil || v != fits {
				t.Error(id, v, err)
			}
			if p, err := c.Encode(fits + "x"); err != codec.ErrTooLarge || p.Bytes != nil {
				t.Error(id, p, err)
			}
			bigger, _ := codec.New[string](by(id), above, 200, nil)
			p, _ := bigger.Encode(fits + "x")
			if p.Compressed != (above == 1) {
				t.Error(id, "compressed", p.Compressed)
			}
			if v, err := decode(c, p); err != codec.ErrTooLarge || v != "" {
				t.Error(id, above, v, err)
			}
		}
	}
	c, _ := codec.New[big.Float](by(codec.JSON), 0, 10, nil)
	if _, err := c.Encode(*big.NewFloat(1.0 / 3)); err != codec.ErrTooLarge {
		t.Error(err)
	}
}

// What is too large is not copied first, nor encoded to its end.
func TestTooLargeIsCheap(t *testing.T) {
	long, list := strings.Repeat("x", 50<<20), make([]int, 5<<20)
	var err, err2 error
	n := allocated(func() {
		_, err = must[string](t, codec.Raw).Encode(long)
		_, err2 = must[[]int](t, codec.MsgPack).Encode(list)
	})
	if err != codec.ErrTooLarge || err2 != codec.ErrTooLarge || n > 8*limit {
		t.Errorf("%v, %v, %d bytes allocated", err, err2, n)
	}
}

func TestCompression(t *testing.T) {
	c, _ := codec.New[string](nil, 100, limit, nil)
	for _, x := range []struct {
		v    string
		want bool
	}{
		{strings.Repeat("a", 100), false}, // not above
		{strings.Repeat("a", 101), true},
		{strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\x00\x01", 1) +
			// would be longer
			"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8!#$%&/()=?{[]}@*+~'-_.:,;<>|\x80\x81\x82\x83\x84\x85\x86", false},
	} {
		p, err := c.Encode(x.v)
		if err != nil || p.Compressed != x.want || x.want && len(p.Bytes) >= len(x.v) {
			t.Error(x.v, p.Compressed, len(p.Bytes), err)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, user} {
		c, _ := codec.New[nested](by(id), 50, limit, nil)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 200 {
					want := nested{Name: strings.Repeat(fmt.Sprint(g), i), U: uint64(i),
						Dict: map[string]any{"g": fmt.Sprint(g)}}
					p, err := c.Encode(want)
					if err != nil {
						t.Error(err)
						return
					}
					if i%3 == 0 { // errors between, for what is pooled
						decode(c, codec.Payload{Codec: id, Bytes: p.Bytes[:len(p.Bytes)/2]})
					}
					if got, err := decode(c, p); err != nil || !reflect.DeepEqual(got, want) {
						t.Error(got, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

var errSecret = errors.New("SECRET in an error")
