package codec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/msgpack"
)

// user is the number of a codec such as users write.
const user codec.ID = 9

// inverse is JSON with all bits inverted, so that no other codec reads it.
type inverse struct{}

func (inverse) Number() uint8 { return uint8(user) }

func (inverse) Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return inverted(b), err
}

func (inverse) Decode(b []byte, v any) error { return json.Unmarshal(inverted(b), v) }

func inverted(b []byte) []byte {
	b = slices.Clone(b)
	for i := range b {
		b[i] ^= 0xff
	}
	return b
}

// by returns the argument of New for values that are written by codec id.
func by(id codec.ID) codec.Custom {
	switch id {
	case 0:
		return nil
	case codec.MsgPack:
		return msgpack.Codec
	case user:
		return inverse{}
	}
	return codec.Builtin(id)
}

// custom is a codec with a function for each method.
type custom struct {
	number uint8
	encode func(v any) ([]byte, error)
	decode func(b []byte, v any) error
}

func (c custom) Number() uint8                { return c.number }
func (c custom) Encode(v any) ([]byte, error) { return c.encode(v) }
func (c custom) Decode(b []byte, v any) error { return c.decode(b, v) }

// picky refuses types.
type picky struct{ custom }

func (picky) Check(t reflect.Type) error {
	if t.Kind() == reflect.Int {
		return errors.New("no ints")
	}
	return nil
}

// Only the numbers of users are taken, only types that the codec takes, and no nil.
func TestNumbers(t *testing.T) {
	for n := range 256 {
		_, err := codec.New[int](custom{number: uint8(n)}, 0, limit, nil)
		if want := n >= 8 && n <= 15; (err == nil) != want {
			t.Errorf("%d: %v", n, err)
		}
		if err != nil && !strings.Contains(err.Error(),
			fmt.Sprintf("Number of codec_test.custom is %d: from 8 to 15", n)) {
			t.Error(err)
		}
	}
	for _, c := range []codec.Custom{ // what wraps one of this module's has no right to its number
		struct{ codec.Custom }{msgpack.Codec}, struct{ codec.Custom }{codec.Builtin(codec.JSON)},
	} {
		if _, err := codec.New[int](c, 0, limit, nil); err == nil {
			t.Errorf("%T was taken", c)
		}
	}
	if _, err := codec.New[int]((*custom)(nil), 0, limit, nil); err == nil ||
		!strings.Contains(err.Error(), "a nil *codec_test.custom") {
		t.Error(err)
	}
}

// A user's codec refuses types if it wants to, and then only if the loss is not accepted; one that
// does not is believed.
func TestCheck(t *testing.T) {
	typ := reflect.TypeFor[int]()
	if err := codec.Check(typ, picky{custom{number: 8}}, false); err == nil || err.Error() != "no ints" {
		t.Error(err)
	}
	for _, err := range []error{
		codec.Check(typ, picky{custom{number: 8}}, true),
		codec.Check(reflect.TypeFor[string](), picky{custom{number: 8}}, false),
		codec.Check(reflect.TypeFor[chan int](), custom{number: 8}, false),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// A loss is accepted where that is asked for; that nothing is encoded is not.
func TestAcceptedLoss(t *testing.T) {
	type lossy struct{ a, B int } //nolint:unused // found by reflection
	//nolint:unused // found by reflection
	type never struct {
		a int
		B []*struct{ C chan int }
	}
	for _, id := range []codec.ID{0, codec.JSON, codec.MsgPack} {
		if err := codec.Check(reflect.TypeFor[lossy](), by(id), false); err == nil ||
			!strings.Contains(err.Error(), "lossy.a: it is not exported") {
			t.Error(id, err)
		}
		if err := codec.Check(reflect.TypeFor[lossy](), by(id), true); err != nil {
			t.Error(id, err)
		}
		if err := codec.Check(reflect.TypeFor[never](), by(id), true); err == nil ||
			!strings.Contains(err.Error(), "never.B[].C: a chan int has no encoding") {
			t.Error(id, err)
		}
	}
	if err := codec.Check(reflect.TypeFor[withTime](), by(codec.Binary), true); err != nil {
		t.Error(err)
	}
}

type withTime struct {
	time.Time
	A int
}

// A struct has the MarshalBinary of what it embeds, and loses its other fields by it.
func TestBinaryCarries(t *testing.T) {
	for _, c := range []struct {
		t    reflect.Type
		want string
	}{
		{reflect.TypeFor[point](), ""}, {reflect.TypeFor[*point](), ""}, {reflect.TypeFor[time.Time](), ""}, {reflect.TypeFor[struct{ time.Time }](), ""},
		{reflect.TypeFor[withTime](), "Binary does not carry withTime.A: the MarshalBinary of codec_test.withTime is that of the embedded time.Time, which leaves it out"},
		{reflect.TypeFor[*withTime](), "withTime.A"}, {reflect.TypeFor[int](), "int lacks MarshalBinary"},
	} {
		for _, err := range []error{codec.Check(c.t, by(codec.Binary), false), codec.Builtin(codec.Binary).Check(c.t)} {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %q", c.t, err, c.want)
			}
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[[]byte]()} {
		for _, c := range []codec.Custom{nil, codec.Builtin(codec.Raw)} {
			if err := codec.Check(typ, c, false); err != nil {
				t.Error(typ, err)
			}
		}
	}
}

type named2 *base

// It gets a pointer that is not nil: that which is the value, else one to the value. What it is to
// fill is new.
func TestPointers(t *testing.T) {
	var got []string
	c := custom{
		number: 15,
		encode: func(v any) ([]byte, error) { got = append(got, fmt.Sprintf("%T", v)); return json.Marshal(v) },
		decode: func(b []byte, v any) error { got = append(got, fmt.Sprintf("%T", v)); return json.Unmarshal(b, v) },
	}
	one := &base{1}
	pointer(t, c, base{1}, 15)
	pointer(t, c, one, 15)
	pointer[*base](t, c, nil, codec.JSON)
	pointer(t, c, &one, 15)
	pointer[any](t, c, "x", 15)
	pointer[any](t, c, nil, 15)
	pointer(t, c, named2(one), 15)
	pointer(t, c, []int{1}, 15)
	want := []string{
		"*codec_test.base", "*codec_test.base", "*codec_test.base", "*codec_test.base", "**codec_test.base",
		"**codec_test.base",
		"*interface {}", "*interface {}", "*interface {}", "*interface {}", "codec_test.named2", "codec_test.named2",
		"*[]int", "*[]int",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func pointer[V any](t *testing.T, by codec.Custom, v V, id codec.ID) {
	t.Helper()
	c, err := codec.New[V](by, 0, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Encode(v)
	if err != nil || p.Codec != id {
		t.Errorf("%T: %v, %v", v, p.Codec, err)
	}
	if got, err := decode(c, p); err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%#v, %v, want %#v", got, err, v)
	}
}

// A codec's panics and errors are errors without the value, what it leaves half done is not given
// out, and an empty encoding is as good as any.
func TestCustomFails(t *testing.T) {
	type caught struct{ error }
	failure := ""
	fail := func() error {
		switch failure {
		case "panic":
			panic(errSecret)
		case "error":
			return errSecret
		}
		return nil
	}
	c, err := codec.New[base](custom{
		number: 8,
		encode: func(v any) ([]byte, error) { return nil, fail() },
		decode: func(b []byte, v any) error { v.(*base).A = 5; return fail() },
	}, 0, limit, func(any) error { return caught{} })
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Encode(base{1})
	if err != nil || p.Codec != 8 || len(p.Bytes) != 0 {
		t.Error(p, err)
	}
	if v, err := decode(c, p); err != nil || v.A != 5 {
		t.Error(v, err)
	}
	for _, failure = range []string{"panic", "error"} {
		_, err := c.Encode(base{1})
		v, err2 := decode(c, p)
		if err == nil || err2 == nil || v != (base{}) {
			t.Error(failure, err, err2, v)
		}
		if failure == "panic" && (err != caught{} || err2 != caught{}) {
			t.Error(err, err2)
		}
		if failure == "error" && (err.Error() != "codec: encode codec 8 of codec_test.base: *errors.errorString" ||
			shows(err) || shows(err2)) {
			t.Error(err, err2)
		}
	}
}

// JSON and Binary can be wrapped, by a codec that encrypts, say.
func TestWrapped(t *testing.T) {
	for _, id := range []codec.ID{codec.JSON, codec.Binary, codec.MsgPack} {
		inner := by(id)
		c, err := codec.New[point](custom{
			number: 10,
			encode: func(v any) ([]byte, error) { b, err := inner.Encode(v); return inverted(b), err },
			decode: func(b []byte, v any) error { return inner.Decode(inverted(b), v) },
		}, 0, limit, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Encode(point{3, 4})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := decode(c, p); err != nil || v != (point{3, 4}) {
			t.Error(id, v, err)
		}
	}
	if _, err := codec.Builtin(codec.Binary).Encode(&base{}); err == nil {
		t.Error("no MarshalBinary, and no error")
	}
	if err := codec.Builtin(codec.Binary).Decode(nil, &base{}); err == nil {
		t.Error("no UnmarshalBinary, and no error")
	}
}
