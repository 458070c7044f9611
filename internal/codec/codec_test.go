package codec

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
)

const limit = 1 << 20

var (
	ids    = []ID{JSON, MsgPack, Binary, Raw}
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
		Hidden   string            `json:"-" msgpack:"-"`
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
		base: base{1}, Opt: &Opt{"o"}, Name: "näme", Tags: []string{"", "x"}, Map: map[string]int{"a": -1}, Next: &nested{Name: "n"},
		Bytes: []byte{0, 255}, Array: [3]byte{1, 2, 3}, Time: time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC), Addr: netip.MustParseAddr("::1"),
		Wait: time.Hour, U: math.MaxUint64, I: math.MinInt64, F32: 1.5, F: math.Pi, Status: 3, Kind: "k", Ptr: &pi, Ints: map[int]bool{-1: true},
		Any: "any", Rows: []base{{1}, {2}}, Nils: []*base{nil, {1}}, Dict: map[string]any{"a": map[string]any{"b": []any{"c", nil, 1.5, true}}},
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

// check asserts that what any Codec of V writes, each Codec of V reads.
func check[V any](t *testing.T, v V) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", v), func(t *testing.T) {
		var readers []*Codec[V]
		for _, id := range append(ids, 0) {
			if c, err := New[V](id, 0, limit, nil); err == nil {
				readers = append(readers, c)
			}
		}
		if len(readers) < 2 {
			t.Fatal("no codecs")
		}
		for _, id := range append(ids, 0) {
			for _, above := range aboves {
				w, err := New[V](id, above, limit, nil)
				if err != nil {
					continue
				}
				p, err := w.Encode(v)
				if err != nil {
					t.Fatalf("%v: %v", id, err)
				}
				for _, r := range readers {
					p.Bytes = bytes.Clone(p.Bytes)
					got, err := r.Decode(p)
					if err != nil || !reflect.DeepEqual(got, v) {
						t.Fatalf("%v, above %d: got %#v, %v\nwant %#v\npayload %+v", id, above, got, err, v, p)
					}
				}
			}
		}
	})
}

func TestDefaultCodec(t *testing.T) {
	for _, c := range []struct{ got, want ID }{
		{must[string](t, 0).id, Raw},
		{must[[]byte](t, 0).id, Raw},
		{must[named](t, 0).id, JSON},
		{must[json.RawMessage](t, 0).id, JSON},
		{must[time.Time](t, 0).id, JSON},
		{must[any](t, 0).id, JSON},
		{must[int](t, 0).id, JSON},
	} {
		if c.got != c.want {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}

func must[V any](t testing.TB, id ID) *Codec[V] {
	t.Helper()
	c, err := New[V](id, 0, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refused[V any](t *testing.T, id ID, want string) {
	t.Helper()
	if c, err := New[V](id, 0, limit, nil); err == nil || c != nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v of %v: %v, want %q", id, reflect.TypeFor[V](), err, want)
	}
	if id >= JSON && id <= Raw {
		if v, err := must[V](t, JSON).Decode(Payload{Codec: id, Bytes: []byte{0x80}}); err == nil || !reflect.ValueOf(&v).Elem().IsZero() {
			t.Errorf("%v decoded a %v: %v", id, reflect.TypeFor[V](), err)
		}
	}
}

func TestRefused(t *testing.T) {
	refused[int](t, Raw, "Raw is for string and []byte, not for int")
	refused[named](t, Raw, "not for codec.named")
	refused[json.RawMessage](t, Raw, "json.RawMessage")
	refused[*string](t, Raw, "*string")
	refused[any](t, Raw, "interface")
	refused[string](t, Binary, "string")
	refused[base](t, Binary, "base")
	refused[any](t, Binary, "interface")
	refused[**point](t, Binary, "point")
	refused[interface{ MarshalBinary() ([]byte, error) }](t, Binary, "interface")
	refused[onlyMarshals](t, Binary, "onlyMarshals")
	refused[*onlyMarshals](t, Binary, "onlyMarshals")
	refused[int](t, 5, "unknown codec 5")
	refused[int](t, 255, "unknown codec 255")
	refused[big.Int](t, MsgPack, "would lose the big.Int")
	refused[*big.Int](t, MsgPack, "would lose the big.Int")
	refused[map[string][]*struct{ X struct{ N big.Int } }](t, MsgPack, "would lose the big.Int in map")
	refused[struct{ C chan int }](t, MsgPack, "chan int")
	refused[struct{ F func() }](t, MsgPack, "func()")
	refused[complex128](t, MsgPack, "complex128")
	refused[struct{ x int }](t, MsgPack, "would lose")
	must[struct {
		C chan int `json:"-"`
		x int
		N *struct{ A int }
	}](t, MsgPack)
	for _, n := range []int{0, -1} {
		if _, err := New[int](0, 0, n, nil); err == nil {
			t.Error("maxBytes", n)
		}
	}
	if _, err := New[int](0, -1, 1, nil); err == nil {
		t.Error("compressAbove -1")
	}
	if _, err := must[int](t, 0).Decode(Payload{Codec: 9, Bytes: []byte("1")}); err == nil {
		t.Error("codec 9")
	}
	if _, err := must[int](t, 0).Decode(Payload{Bytes: []byte("1")}); err == nil {
		t.Error("codec 0")
	}
}

// IDs are in entries that other versions of a program have written.
func TestFormatStays(t *testing.T) {
	for _, c := range []struct {
		id   ID
		num  uint8
		want string
	}{
		{JSON, 1, `{"X":1,"Y":2}`},
		{MsgPack, 2, "\x82\xa1X\x01\xa1Y\x02"},
		{Binary, 3, "1,2"},
	} {
		var p Payload
		var err error
		if c.id == Binary {
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
	p, err := must[tagged](t, MsgPack).Encode(tagged{1, 2, 0, 4, 5})
	if want := "\x83\xa1m\x01\xa2c2\x02\xa1E\x05"; err != nil || string(p.Bytes) != want {
		t.Errorf("%q, %v", p.Bytes, err)
	}
}

// Nil is not empty, whichever codec writes it.
func TestNilIsNotEmpty(t *testing.T) {
	for _, id := range []ID{Raw, JSON, MsgPack} {
		c := must[[]byte](t, id)
		for _, v := range [][]byte{nil, {}} {
			p, err := c.Encode(v)
			got, err2 := c.Decode(p)
			if err != nil || err2 != nil || (got == nil) != (v == nil) || len(got) != 0 {
				t.Error(id, v == nil, got == nil, err, err2)
			}
		}
	}
	if got, err := must[[]byte](t, 0).Decode(Payload{Codec: Raw}); err != nil || got == nil {
		t.Error("an empty payload is an empty value", got, err)
	}
}

func TestRawIsNotCopied(t *testing.T) {
	c := must[[]byte](t, 0)
	in := append(make([]byte, 0, 100), "abc"...)
	v, err := c.Decode(Payload{Codec: Raw, Bytes: in})
	if err != nil || &v[0] != &in[0] || cap(v) != 3 {
		t.Error("copied, or more than the payload can be written to", err, cap(v))
	}
	p, err := c.Encode(in)
	if err != nil || &p.Bytes[0] != &in[0] {
		t.Error("copied", err)
	}
	s := must[string](t, 0)
	str, err := s.Decode(Payload{Codec: Raw, Bytes: in})
	in[0] = 'X'
	if err != nil || str != "abc" {
		t.Error("a string changed", str, err)
	}
}

func TestTrailingBytes(t *testing.T) {
	for _, id := range []ID{JSON, MsgPack} {
		c := must[map[string]any](t, id)
		p, err := c.Encode(map[string]any{"a": "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, tail := range []string{"x", "\xc0", "\x00", "{}", "]", "}"} {
			if v, err := c.Decode(Payload{Codec: id, Bytes: append(bytes.Clone(p.Bytes), tail...)}); err == nil || v != nil {
				t.Errorf("%v with %q: %v", id, tail, v)
			}
		}
		for n := range p.Bytes {
			if v, err := c.Decode(Payload{Codec: id, Bytes: p.Bytes[:n]}); err == nil || v != nil {
				t.Errorf("%v cut to %d: %v", id, n, v)
			}
		}
	}
}

// What an any holds comes back as one of a few types, and a map with keys that are no strings does not: as the comment of MsgPack says.
func TestMsgPackAny(t *testing.T) {
	c := must[any](t, MsgPack)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))
	for _, x := range []struct{ in, want any }{
		{5, int64(5)}, {int8(-5), int64(-5)}, {1000, int64(1000)}, {uint8(5), int64(5)}, {uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{float32(1.5), 1.5}, {base{1}, map[string]any{"A": int64(1)}}, {[]string{"a"}, []any{"a"}}, {[]byte{1}, []byte{1}}, {at, at.UTC()},
	} {
		p, err := c.Encode(x.in)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Decode(p); err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%#v: %#v, %v, want %#v", x.in, got, err, x.want)
		}
	}
	p, err := c.Encode(map[int]string{1: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Decode(p); err == nil || got != nil {
		t.Error(got, err)
	}
}

// A key that comes twice has its last value in MsgPack, not a mixture of both.
func TestRepeatedKeys(t *testing.T) {
	type item struct{ A, B int }
	type box struct {
		L   []item
		M   map[string]item
		Any any
	}
	const first, second = "\x81\xa1A\x01", "\x81\xa1B\x02"
	for _, c := range []struct {
		in   string
		want box
	}{
		{"\x82\xa1L\x91" + first + "\xa1L\x91" + second, box{L: []item{{B: 2}}}},
		{"\x81\xa1M\x82\xa1k" + first + "\xa1k" + second, box{M: map[string]item{"k": {B: 2}}}},
		{"\x82\xa3Any" + first + "\xa3Any" + second, box{Any: map[string]any{"B": int64(2)}}},
	} {
		v, err := must[box](t, MsgPack).Decode(Payload{Codec: MsgPack, Bytes: []byte(c.in)})
		if err != nil || !reflect.DeepEqual(v, c.want) {
			t.Errorf("%q: %+v, %v, want %+v", c.in, v, err, c.want)
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
	for _, id := range []ID{JSON, MsgPack} {
		p, err := must[other](t, id).Encode(other{5, "x"})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := must[want](t, id).Decode(p); err == nil || v != (want{}) {
			t.Error(id, v, err)
		}
		if v, err := must[*want](t, id).Decode(p); err == nil || v != nil {
			t.Error(id, v, err)
		}
		p, err = must[int](t, id).Encode(300)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := must[int8](t, id).Decode(p); err == nil || v != 0 {
			t.Error(id, v, err)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, id := range []ID{JSON, MsgPack, Raw} {
		for _, above := range []int{0, 1} {
			c, _ := New[string](id, above, 100, nil)
			fits := strings.Repeat("x", 100-map[ID]int{JSON: 2, MsgPack: 2}[id])
			if p, err := c.Encode(fits); err != nil {
				t.Error(id, err)
			} else if v, err := c.Decode(p); err != nil || v != fits {
				t.Error(id, v, err)
			}
			if p, err := c.Encode(fits + "x"); err != ErrTooLarge || p.Bytes != nil {
				t.Error(id, p, err)
			}
			bigger, _ := New[string](id, above, 200, nil)
			p, _ := bigger.Encode(fits + "x")
			if p.Compressed != (above == 1) {
				t.Error(id, "compressed", p.Compressed)
			}
			if v, err := c.Decode(p); err != ErrTooLarge || v != "" {
				t.Error(id, above, v, err)
			}
		}
	}
	c, _ := New[big.Float](JSON, 0, 10, nil)
	if _, err := c.Encode(*big.NewFloat(1.0 / 3)); err != ErrTooLarge {
		t.Error(err)
	}
}

// What is too large is not copied first, nor encoded to its end.
func TestTooLargeIsCheap(t *testing.T) {
	long, list := strings.Repeat("x", 50<<20), make([]int, 5<<20)
	var err, err2 error
	n := allocated(func() {
		_, err = must[string](t, Raw).Encode(long)
		_, err2 = must[[]int](t, MsgPack).Encode(list)
	})
	if err != ErrTooLarge || err2 != ErrTooLarge || n > 8*limit {
		t.Errorf("%v, %v, %d bytes allocated", err, err2, n)
	}
}

func TestCompression(t *testing.T) {
	c, _ := New[string](0, 100, limit, nil)
	for _, x := range []struct {
		v    string
		want bool
	}{
		{strings.Repeat("a", 100), false}, // not above
		{strings.Repeat("a", 101), true},
		{strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\x00\x01", 1) +
			"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8!#$%&/()=?{[]}@*+~'-_.:,;<>|\x80\x81\x82\x83\x84\x85\x86", false}, // would be longer
	} {
		p, err := c.Encode(x.v)
		if err != nil || p.Compressed != x.want || x.want && len(p.Bytes) >= len(x.v) {
			t.Error(x.v, p.Compressed, len(p.Bytes), err)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	for _, id := range []ID{JSON, MsgPack} {
		c, _ := New[nested](id, 50, limit, nil)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 200 {
					want := nested{Name: strings.Repeat(fmt.Sprint(g), i), U: uint64(i), Dict: map[string]any{"g": fmt.Sprint(g)}}
					p, err := c.Encode(want)
					if err != nil {
						t.Error(err)
						return
					}
					if i%3 == 0 { // errors between, for what is pooled
						c.Decode(Payload{Codec: id, Bytes: p.Bytes[:len(p.Bytes)/2]})
					}
					if got, err := c.Decode(p); err != nil || !reflect.DeepEqual(got, want) {
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
