package carry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/codec/carry"
	"github.com/cacheaside/cacheaside/msgpack"
)

// carrier is a codec that reports which types it can carry.
type carrier interface {
	codec.Custom
	codec.Checker
}

var carriers = []carrier{codec.Builtin(codec.JSON), msgpack.Codec}

// The verdict on each type of the table equals the table's and the real behaviour of the codec:
// each value of an accepted type survives a round trip, and some value of each refused type does
// not.
func TestVerdicts(t *testing.T) {
	for _, r := range rows {
		for i, c := range carriers {
			want := []string{r.json, r.pack}[i]
			t.Run(fmt.Sprintf("%v/%v", c, r.t), func(t *testing.T) {
				if got := lost(t, c, r.t); got != want {
					t.Errorf("lost is %q, want %q: %v", got, want, c.Check(r.t))
				}
				agrees(t, c, r.t)
			})
		}
	}
}

// _struct has options of MessagePack in its tag, and no data.
func TestStructOptions(t *testing.T) {
	typ := reflect.TypeFor[struct {
		_struct bool `codec:",toarray"`
		A       int
	}]()
	if err := msgpack.Codec.Check(typ); err != nil {
		t.Error(err)
	}
	if got := lost(t, codec.Builtin(codec.JSON), typ); got != "_struct" {
		t.Error(got)
	}
}

// lost is the path of what c says it loses of a type, or "".
func lost(t *testing.T, c carrier, typ reflect.Type) string {
	err := c.Check(typ)
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*carry.Error](err)
	if !ok {
		t.Fatalf("%T", err)
	}
	return e.Path
}

// agrees asserts that the verdict of c on a type matches round trips of values.
func agrees(t *testing.T, c carrier, typ reflect.Type) {
	t.Helper()
	verdict := c.Check(typ)
	r := rand.New(rand.NewPCG(1, 2))
	back := 0
	const tries = 30
	for range tries {
		in := reflect.New(typ)
		filler{r, map[reflect.Type]int{}}.fill(in.Elem())
		out, err := roundTrip(c, in)
		if err == nil && reflect.DeepEqual(in.Interface(), out.Interface()) {
			back++
		} else if verdict == nil {
			t.Fatalf("%v accepts %v: %+v comes back as %+v, %v", c, typ, in.Elem(), out.Elem(), err)
		}
	}
	if problem, ok := errors.AsType[*carry.Error](verdict); ok && problem.Mixed {
		return // values come back in a program of the same release of Go
	}
	if verdict != nil && back == tries {
		t.Errorf("%v refuses %v, and all values come back: %v", c, typ, verdict)
	}
}

func roundTrip(c carrier, in reflect.Value) (out reflect.Value, err error) {
	out = reflect.New(in.Type().Elem())
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	b, err := c.Encode(in.Interface())
	if err != nil {
		return out, err
	}
	return out, c.Decode(b, out.Interface())
}

// t0 is a context.Context.
var t0 = context.WithValue(context.Background(), stringer("k"), 1)

type stringer string

func (s stringer) String() string { return string(s) }

// filler fills values at random.
type filler struct {
	*rand.Rand
	in map[reflect.Type]int // the structs around, so that what contains itself has an end
}

// goesOn reports whether a value of t may contain further values of t.
func (f filler) goesOn(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array ||
		t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return f.in[t] < 3
}

// fill fills a value with what is not zero, in fields that are not exported, too.
func (f filler) fill(v reflect.Value) {
	r := f.Rand
	if !v.CanSet() {
		v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	}
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = time.Unix(r.Int64N(1e10), r.Int64N(1e9)).UTC()
		return
	case *big.Int:
		p.SetInt64(-1 - r.Int64N(1e18))
		return
	case *big.Rat:
		p.SetFrac64(-1-r.Int64N(1e18), 1+r.Int64N(1e9))
		return
	case *url.URL:
		*p = url.URL{Scheme: "https", Host: "a", Path: "/b", User: url.UserPassword("c", "d")}
		return
	case *netip.Addr:
		*p = netip.AddrFrom4([4]byte{1, 2, 3, byte(r.IntN(256))})
		return
	case *netip.Prefix:
		*p = netip.PrefixFrom(netip.AddrFrom4([4]byte{1, 2, 3, byte(r.IntN(256))}), 24)
		return
	case *json.Number:
		*p = json.Number(fmt.Sprint(1 + r.IntN(1000)))
		return
	case *json.RawMessage:
		*p = fmt.Appendf(nil, `{"a": %d}`, r.IntN(1000))
		return
	case *rawText:
		*p = rawText(fmt.Sprintf(`{"a": %d}`, r.IntN(1000)))
		return
	case *rawBytes:
		*p = fmt.Appendf(nil, `"<%d"`, r.IntN(1000))
		return
	}
	f.kind(v)
}

func (f filler) kind(v reflect.Value) {
	r := f.Rand
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1 + r.Int64N(100))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint(1 + r.Uint64N(100))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1 + r.Float64()/4)
		if v.Kind() == reflect.Float32 {
			v.SetFloat(float64(float32(v.Float())))
		}
	case reflect.Complex64, reflect.Complex128:
		v.SetComplex(complex(1, 2))
	case reflect.String:
		v.SetString([]string{"a", "ö\n<\"", "null", "12", "\x00x"}[r.IntN(5)])
	case reflect.Chan:
		if v.Type().ChanDir() == reflect.BothDir {
			v.Set(reflect.MakeChan(v.Type(), 1))
		}
	case reflect.Func:
		v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { return nil }))
	case reflect.UnsafePointer:
		v.SetPointer(unsafe.Pointer(new(int)))
	case reflect.Interface:
		for _, x := range []any{"x", errors.New("x"), stringer("x"), strings.NewReader("x"), t0,
			json.Marshaler(json.RawMessage("1"))} {
			if reflect.TypeOf(x).Implements(v.Type()) {
				v.Set(reflect.ValueOf(x))
				break
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Struct:
		f.in[v.Type()]++
		defer func() { f.in[v.Type()]-- }()
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "_" {
				f.fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		if f.goesOn(v.Type().Elem()) {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem())
		}
	case reflect.Slice:
		if f.goesOn(v.Type().Elem()) {
			v.Set(reflect.MakeSlice(v.Type(), 1+r.IntN(2), 2))
			for i := range v.Len() {
				f.fill(v.Index(i))
			}
		}
	case reflect.Map:
		if f.goesOn(v.Type().Elem()) {
			v.Set(reflect.MakeMap(v.Type()))
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key)
			if key.Kind() == reflect.Interface && r.IntN(2) == 0 && key.NumMethod() == 0 {
				key.Set(reflect.ValueOf(true)) // JSON has only strings
			}
			f.fill(elem)
			v.SetMapIndex(key, elem)
		}
	}
}
