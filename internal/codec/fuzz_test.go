package codec_test

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/msgpack"
)

type fuzzed struct {
	I    int8
	U    uint64
	F    float64
	S    string `json:"s"`
	B    []byte
	T    time.Time
	L    []fuzzed
	M    map[string]*fuzzed
	A    [2]int16
	Any  any
	P    *string
	Bool bool
}

const fuzzLimit = 64 << 10

// FuzzDecode decodes any bytes as anything: an error and the zero value, or a value that comes back
// the same from another round trip.
func FuzzDecode(f *testing.F) {
	str := "s"
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, codec.Raw} {
		seed(f, id, fuzzed{I: -1, U: math.MaxUint64, F: 1.5, S: "x", B: []byte{1}, T: time.Unix(5, 6).UTC(),
			L: []fuzzed{{}}, M: map[string]*fuzzed{"a": nil}, Any: map[string]any{"b": []any{1.5, nil, true}}, P: &str})
		seed(f, id, "text")
		seed(f, id, []byte("bytes"))
		seed(f, id, map[string]any{"a": []any{"b", 1, -1, 1.5, nil, true, map[string]any{}}, "t": time.Unix(7, 8).UTC(),
			"x": []byte{1}})
	}
	for _, b := range []string{"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff",
		"\xd7\xff\xdf\xff\xff\xff\xff\x00\x00\x00", "\x91\x91\x91\x90", "[[[", "\xcf\x00\x00\x00\x00\x00\x00\x00\x30",
		"\x82\xa1L\x90\xa1L\x91\x80"} {
		f.Add(uint8(codec.MsgPack), false, []byte(b))
		f.Add(uint8(codec.MsgPack), true, s2.Encode(nil, []byte(b)))
	}
	f.Fuzz(func(t *testing.T, id uint8, compressed bool, b []byte) {
		n := allocated(func() { fuzzAll(t, codec.Payload{codec.ID(id), compressed, b}) })
		if max := int64(32<<20 + 10_000*len(b)); n > max {
			// generous: with the round trips, and fuzzLimit for a compressed payload
			t.Errorf("%d bytes allocated for %d", n, len(b))
		}
	})
}

func fuzzAll(t *testing.T, p codec.Payload) {
	fuzzDecode[fuzzed](t, p)
	fuzzDecode[string](t, p)
	fuzzDecode[[]byte](t, p)
	fuzzDecode[map[string]any](t, p)
	fuzzDecode[any](t, p)
}

// The same for millions of inputs, without a look at what they cover.
func TestDecodeMillions(t *testing.T) {
	inputs := 10_000
	if testenv.Accepting {
		inputs = 3_000_000
	}
	var corpus [][]byte
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack} {
		for _, v := range []any{
			"text", []byte("bytes"), []any{"b", 1, -1, 1.5, nil, true, map[string]any{}},
			map[string]any{"t": time.Unix(7, 8).UTC(), "x": []byte{1}},
			fuzzed{I: -1, U: math.MaxUint64, F: 1.5, S: "x", B: []byte{1}, T: time.Unix(5, 6).UTC(), L: []fuzzed{{}},
				M: map[string]*fuzzed{"a": nil}},
		} {
			c, err := codec.New[any](by(id), 0, fuzzLimit, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := c.Encode(v)
			if err != nil {
				t.Fatal(err)
			}
			corpus = append(corpus, p.Bytes, s2.Encode(nil, p.Bytes))
		}
	}
	i := 0
	for b := range testenv.Noise(1, inputs, corpus...) {
		i++
		fuzzAll(t, codec.Payload{codec.ID(1 + i%5), i%3 == 0, b})
	}
	t.Logf("%d inputs", inputs)
}

func seed[V any](f *testing.F, id codec.ID, v V) {
	c, err := codec.New[V](by(id), 0, fuzzLimit, nil)
	if err != nil {
		return
	}
	if p, err := c.Encode(v); err == nil {
		f.Add(uint8(id), false, p.Bytes)
		f.Add(uint8(id), true, s2.Encode(nil, p.Bytes))
	}
}

func fuzzDecode[V any](t *testing.T, p codec.Payload) {
	c, err := codec.New[V](msgpack.Codec, 0, fuzzLimit, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Bytes = bytes.Clone(p.Bytes)
	v, err := decode(c, p)
	if err != nil {
		if !reflect.ValueOf(&v).Elem().IsZero() {
			t.Fatalf("%T: %#v with %v", v, v, err)
		}
		return
	}
	for _, id := range []codec.ID{p.Codec, 0} {
		if id != 0 && (id == codec.Raw || id == codec.Binary) {
			continue
		}
		if id == 0 && p.Codec == codec.MsgPack && reflect.TypeFor[V]().Kind() != reflect.String {
			// JSON of what was MsgPack: bytes that are no UTF-8, times after the year 9999, and
			// numbers in an any are others
			continue
		}
		w, err := codec.New[V](by(id), 1, 100*fuzzLimit, nil)
		if err != nil {
			t.Fatal(err)
		}
		q, err := w.Encode(v)
		if err != nil {
			t.Fatalf("%v: decoded %#v, but %v", id, v, err)
		}
		got, err := decode(w, q)
		if err != nil || !same(reflect.ValueOf(&v).Elem(), reflect.ValueOf(&got).Elem()) {
			t.Fatalf("%v of %T: got %#v, %v\nwant %#v\npayload %q", id, v, got, err, v, q.Bytes)
		}
	}
}

// same is reflect.DeepEqual, but that NaN is NaN, a time is the same in another zone, and an any's
// integer in another type.
func same(a, b reflect.Value) bool {
	if a.IsValid() && b.IsValid() && a.Kind() != b.Kind() {
		u, i := a, b
		if a.CanInt() {
			u, i = b, a
		}
		return u.Kind() == reflect.Uint64 && i.Kind() == reflect.Int64 && i.Int() >= 0 && u.Uint() == uint64(i.Int())
	}
	if a.IsValid() != b.IsValid() || a.IsValid() && a.Type() != b.Type() {
		return false
	}
	switch a.Kind() {
	case reflect.Float64:
		return a.Float() == b.Float() || a.Float() != a.Float() && b.Float() != b.Float()
	case reflect.Interface, reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || same(a.Elem(), b.Elem()))
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() || a.Kind() == reflect.Slice && a.IsNil() != b.IsNil() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
			return false
		}
		for _, k := range a.MapKeys() {
			if !same(a.MapIndex(k), b.MapIndex(k)) {
				return false
			}
		}
	case reflect.Struct:
		if t, ok := reflect.TypeAssert[time.Time](a); ok {
			return t.Equal(b.Interface().(time.Time))
		}
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
	case reflect.Invalid:
	default:
		return a.Interface() == b.Interface()
	}
	return true
}

// FuzzRoundTrip encodes anything with each codec, and decodes it with Codecs of each.
func FuzzRoundTrip(f *testing.F) {
	f.Add("", []byte(nil), int64(0), uint64(0), 0.0, false)
	f.Add("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", []byte{0, 255}, int64(math.MinInt64), uint64(math.MaxUint64),
		math.Pi, true)
	f.Fuzz(func(t *testing.T, s string, b []byte, i int64, u uint64, x float64, yes bool) {
		valid := strings.ToValidUTF8(s, "?") // else it is another string in JSON, as documented there
		fuzzRoundTrip(t, s, codec.Raw, codec.MsgPack)
		fuzzRoundTrip(t, valid, codec.Raw, codec.MsgPack, codec.JSON)
		fuzzRoundTrip(t, b, codec.Raw, codec.MsgPack, codec.JSON)
		fuzzRoundTrip(t, i, codec.MsgPack, codec.JSON)
		fuzzRoundTrip(t, u, codec.MsgPack, codec.JSON)
		fuzzRoundTrip(t, x, codec.MsgPack)
		fuzzRoundTrip(t, point{int(i), int(u)}, codec.MsgPack, codec.Binary, codec.JSON)
		fuzzRoundTrip(t, map[string]any{s: i, "b": append([]byte{}, b...), "x": x, "u": u | 1<<63}, codec.MsgPack)
		v := fuzzed{I: int8(i), U: u, S: valid, B: b, T: time.Unix(i>>30, int64(uint32(u))).UTC(),
			M: map[string]*fuzzed{valid: {S: valid}}, Any: valid, P: &valid, Bool: yes}
		if y := v.T.Year(); y < 0 || y > 9999 {
			v.T = time.Time{} // JSON has no others
		}
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			v.F = x
		}
		fuzzRoundTrip(t, v, codec.MsgPack, codec.JSON)
		fuzzRoundTrip(t, []*fuzzed{&v, nil}, codec.MsgPack, codec.JSON)
	})
}

func fuzzRoundTrip[V any](t *testing.T, v V, ids ...codec.ID) {
	for _, id := range ids {
		for _, above := range []int{0, 1} {
			w, err := codec.New[V](by(id), above, limit, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := w.Encode(v)
			if err != nil {
				t.Fatalf("%v: %v", id, err)
			}
			r, _ := codec.New[V](msgpack.Codec, 0, limit, nil)
			got, err := decode(r, p)
			if err != nil || !same(reflect.ValueOf(&v).Elem(), reflect.ValueOf(&got).Elem()) {
				t.Fatalf("%v: got %#v, %v\nwant %#v", id, got, err, v)
			}
		}
	}
}
