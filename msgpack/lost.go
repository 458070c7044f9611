package msgpack

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"sync"

	"github.com/ugorji/go/codec"

	entry "github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

const pair = "MarshalBinary and UnmarshalBinary"

// format describes how ugorji/go/codec handles types, with the settings of handle. It does not
// use the methods for JSON and texts, calls the methods of *T for each T, and accepts any type as
// key of a map.
var format = &carry.Format{
	Codec:     "MessagePack",
	Pair:      pair,
	Omit:      `msgpack:"-"`,
	Methods:   methods,
	Map:       floatKeys,
	Field:     field,
	FirstWins: true,
}

// Check returns an error that names the first part of t that MessagePack does not preserve. It
// cannot check the content of an any.
func (messagePack) Check(t reflect.Type) error { return format.Check(t, false) }

// CheckNative is Check; lossy accepts losses.
func (messagePack) CheckNative(t reflect.Type, lossy entry.Lossy) error {
	return format.Check(t, bool(lossy))
}

var (
	self    = reflect.TypeFor[codec.Selfer]()
	selfers = &carry.Ways{
		Methods: [2]carry.Method{{Name: "CodecEncodeSelf", Iface: self}, {Name: "CodecDecodeSelf", Iface: self}},
		Encode:  func(v any) ([]byte, error) { return encode(v, math.MaxInt) },
		Decode:  decode,
	}
)

func methods(p carry.Place) (*carry.Ways, *carry.Problem) {
	switch {
	case p.Type == reflect.TypeFor[codec.Raw](), p.Type == reflect.TypeFor[codec.RawExt]():
		return nil, &carry.Problem{Reason: fmt.Sprintf("a %v is not encoded", p.Type), Cure: "use another type",
			Never: true}
	case selfers.Methods[0].Reaches(p.Type):
		return selfers, nil
	}
	return carry.BinaryWays(p.Type), nil
}

// losesFloatKeys reports whether a decoded map does not find its float keys. The library writes
// into maps with functions of the runtime that are not made for it, and those for integers do not
// work for floats since Go 1.27. A lookup of one key can succeed by chance: the map compares seven
// bits of the wrong hash. So all of many keys must be found.
var losesFloatKeys = sync.OnceValue(func() bool {
	in := map[float64]bool{}
	for i := range 32 {
		in[float64(i)+0.5] = true
	}
	var back map[float64]bool
	b, err := encode(in, math.MaxInt)
	return err != nil || decode(b, &back) != nil || !maps.Equal(in, back)
})

func floatKeys(p carry.Place) *carry.Problem {
	kind := p.Type.Key().Kind()
	if kind != reflect.Float32 && kind != reflect.Float64 || !losesFloatKeys() {
		return nil
	}
	return &carry.Problem{
		Reason: fmt.Sprintf("a decoded %v does not find its keys in a program of this release of Go", p.Type),
		Cure:   "use keys of another type",
	}
}

// field describes how a field is encoded. The last non-empty tag of json, codec and msgpack wins.
func field(f reflect.StructField) carry.Field {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	key := "msgpack"
	for _, k := range []string{"json", "codec", "msgpack"} {
		if f.Tag.Get(k) != "" {
			key = k
		}
	}
	tag := f.Tag.Get(key)
	name, _, _ := strings.Cut(tag, ",")
	kind := f.Type.Kind()
	embedded := f.Anonymous && t.Kind() == reflect.Struct
	switch {
	case f.Name == "_struct": // its tag contains options for the struct
		return carry.Field{Ignored: true}
	case kind == reflect.Func, kind == reflect.UnsafePointer:
		return carry.Field{Problem: &carry.Problem{Reason: fmt.Sprintf("a %v is left out", f.Type),
			Cure: "use another type"}}
	case tag == "-":
		return carry.Field{Problem: carry.Omitted(fmt.Sprintf("%s:%q", key, tag), pair)}
	case embedded && !f.IsExported() && kind == reflect.Pointer:
		return carry.Field{Problem: carry.UnexportedPointer()}
	case embedded && name == "":
		return carry.Field{Inline: true}
	case !f.IsExported():
		return carry.Field{Problem: carry.Unexported(pair)}
	}
	return carry.Field{Name: cmp.Or(name, f.Name)}
}
