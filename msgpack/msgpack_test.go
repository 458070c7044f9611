package msgpack

import (
	"bytes"
	"errors"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	ugorji "github.com/ugorji/go/codec"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The suites of all codecs, in internal/codec, include this one: round trips, limits, panics,
// decompression bombs, millions of inputs, and the fuzzers.
func TestMain(m *testing.M) { testenv.Main(m) }

const limit = 1 << 20

type base struct{ A int }

func must[V any](t testing.TB) *codec.Codec[V] {
	t.Helper()
	c, err := codec.New[V](Codec, 0, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refused[V any](t *testing.T, want string) {
	t.Helper()
	if err := codec.Check(reflect.TypeFor[V](), Codec, false); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: %v, want %q", reflect.TypeFor[V](), err, want)
	}
}

// Types that MessagePack would not preserve are refused in advance.
func TestRefused(t *testing.T) {
	refused[big.Int](t, "does not carry Int.neg: it is not exported")
	refused[*big.Int](t, "does not carry Int.neg: ")
	refused[map[string][]*struct{ X struct{ N big.Int } }](t, "does not carry X.N.neg: ")
	refused[struct{ C chan int }](t, "does not carry C: a chan int has no encoding")
	refused[struct{ F func() }](t, "does not carry F: a func() is left out")
	refused[complex128](t, "a complex128 has no encoding")
	refused[struct{ x int }](t, "does not carry x: ")
	refused[struct {
		C chan int `json:"-"`
		N *struct{ A int }
	}](t, `does not carry C: its tag is json:"-"`)
}

// Code that wraps Codec passes values and pointers to them, without a limit.
func TestWrappedCodec(t *testing.T) {
	for _, v := range []any{base{1}, &base{1}} {
		b, err := Codec.Encode(v)
		if err != nil || string(b) != "\x81\xa1A\x01" {
			t.Errorf("%q, %v", b, err)
		}
		var got base
		if err := Codec.Decode(b, &got); err != nil || got.A != 1 {
			t.Error(got, err)
		}
		if err := Codec.Decode([]byte("\xdd\xff\xff\xff\xff"), &got); err != errCut {
			t.Error(err)
		}
	}
	if n := Codec.Number(); n != 2 { // the number is stored in entries
		t.Error(n)
	}
}

// A nil is stored as MessagePack's nil, as in all versions.
func TestNil(t *testing.T) {
	c := must[*base](t)
	p, err := c.Encode(nil)
	if err != nil || p.Codec != codec.MsgPack || string(p.Bytes) != "\xc0" {
		t.Error(p, err)
	}
	if v, err := c.Decode(p); err != nil || *v != nil {
		t.Error(v, err)
	}
}

// The contents of an any come back as one of a few types, and a map with keys other than strings is
// refused, as the comment of MsgPack says.
func TestMsgPackAny(t *testing.T) {
	c := must[any](t)
	moment := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))
	for _, x := range []struct{ in, want any }{
		{5, int64(5)}, {int8(-5), int64(-5)}, {1000, int64(1000)}, {uint8(5), int64(5)}, {uint64(math.MaxUint64), uint64(math.MaxUint64)},
		{float32(1.5), 1.5}, {base{1}, map[string]any{"A": int64(1)}}, {[]string{"a"}, []any{"a"}}, {[]byte{1}, []byte{1}}, {moment, moment.UTC()},
	} {
		p, err := c.Encode(x.in)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Decode(p); err != nil || !reflect.DeepEqual(*got, x.want) {
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

// A repeated key has its last value in MsgPack, not a mixture of all.
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
		v, err := must[box](t).Decode(codec.Payload{Codec: codec.MsgPack, Bytes: []byte(c.in)})
		if err != nil || !reflect.DeepEqual(*v, c.want) {
			t.Errorf("%q: %+v, %v, want %+v", c.in, v, err, c.want)
		}
	}
}

// lazy ignores its input.
type lazy struct{}

func (lazy) CodecEncodeSelf(e *ugorji.Encoder) { e.MustEncode("x") }
func (*lazy) CodecDecodeSelf(*ugorji.Decoder)  {}

func TestUnreadValue(t *testing.T) {
	c := must[lazy](t)
	p, err := c.Encode(lazy{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decode(p); !errors.Is(err, errTrailing) {
		t.Error(err)
	}
}

// A value that contains itself is an error, although the library alone would overflow the stack. So
// is a value that could not be decoded.
func TestMsgPackCycles(t *testing.T) {
	type ring struct{ Next *ring }
	r := &ring{}
	r.Next = r
	m := map[string]any{}
	m["m"] = m
	l := []any{nil}
	l[0] = l
	chain := func(n int) (c *ring) {
		for range n {
			c = &ring{c}
		}
		return c
	}
	for _, maxBytes := range []int{1 << 10, math.MaxInt} {
		c, _ := codec.New[any](Codec, 0, maxBytes, nil)
		for _, v := range []any{r, m, l, chain(maxDepth + 1)} {
			if p, err := c.Encode(v); err == nil || p.Bytes != nil {
				t.Errorf("%T", v)
			}
		}
	}
	c := must[*ring](t)
	p, err := c.Encode(chain(maxDepth))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Decode(p)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for v := *got; v != nil; v = v.Next {
		n++
	}
	if n != maxDepth {
		t.Errorf("%d of %d levels came back", n, maxDepth)
	}
	if p2, err := c.Encode(chain(100)); err != nil || !bytes.HasPrefix(p.Bytes, p2.Bytes[:100]) {
		t.Error(err) // the pooled encoder still works
	}
}
