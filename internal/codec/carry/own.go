package carry

import (
	"bytes"
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"time"
)

// Method is a method of a value that encodes or decodes it.
type Method struct {
	Name  string
	Iface reflect.Type // the interface with the method; nil: has decides
	has   func(t reflect.Type) bool
}

// On reports whether t has the method.
func (m Method) On(t reflect.Type) bool {
	if m.Iface == nil {
		return m.has(t)
	}
	return t.Implements(m.Iface)
}

// Reaches reports whether t or *t has the method.
func (m Method) Reaches(t reflect.Type) bool { return m.On(t) || m.On(reflect.PointerTo(t)) }

// Ways are the two methods of a value, or of a pointer to it, that encode and decode it.
type Ways struct {
	Methods [2]Method
	Encode  func(pointer any) ([]byte, error)
	Decode  func(b []byte, pointer any) error
}

// rawJSON is a sample of JSON as people write it.
const rawJSON = `{"a": "<"}`

// raw reports a problem for a type whose values are written as raw JSON, such as json.RawMessage:
// encoding/json removes its white space and escapes HTML characters. Go's types do not show this,
// so raw encodes a sample.
func (w *walk) raw(p Place, ways *Ways) {
	v := reflect.New(p.Type)
	if p.Type.Kind() == reflect.String {
		v.Elem().SetString(rawJSON)
	} else {
		v.Elem().SetBytes([]byte(rawJSON))
	}
	if b, err := attempt(ways.Encode, v); err == nil && string(b) == `{"a":"\u003c"}` {
		w.report(p.Path, &Problem{
			Reason: fmt.Sprintf("the JSON in a %v comes back compacted and escaped", p.Type),
			Cure:   "use a string or []byte, or another LoaderOptions.Codec",
		})
	}
}

// selfEncoded inspects a struct that encodes and decodes itself. If the struct only inherits the
// methods from an embedded type, such as time.Time, its other fields are lost. Go's types do not
// show this, so zero values of a struct that embeds such a type are encoded and decoded.
func (w *walk) selfEncoded(p Place, ways *Ways) {
	switch p.Type.Kind() {
	case reflect.Struct:
	case reflect.String:
		w.raw(p, ways)
		return
	case reflect.Slice:
		if p.Type.Elem().Kind() == reflect.Uint8 {
			w.raw(p, ways)
		}
		return
	default:
		return
	}
	for f := range p.Type.Fields() {
		if f.Anonymous && (ways.Methods[0].Reaches(f.Type) || ways.Methods[1].Reaches(f.Type)) {
			w.try(p, f, ways)
			return
		}
	}
}

// try inspects a struct whose embedded field has the methods.
func (w *walk) try(p Place, embedded reflect.StructField, ways *Ways) {
	t, inner := p.Type, embedded.Type
	v := reflect.New(t)
	if inner.Kind() == reflect.Pointer && embedded.IsExported() {
		inner = inner.Elem()
		v.Elem().FieldByIndex(embedded.Index).Set(reflect.New(inner))
	}
	whole, err := attempt(ways.Encode, v)
	if err != nil {
		return // nothing is known
	}
	path := join(p.Path, embedded.Name)
	lost, same := LeftOut(v, embedded.Index[0], inner, ways.Encode, false)
	if lost != "" {
		w.report(join(p.Path, lost), &Problem{
			Reason: fmt.Sprintf("the %s of %v is that of the embedded %v, which leaves it out", ways.Methods[0].Name, t,
				embedded.Type),
			Cure: fmt.Sprintf("give %v %s, or the field %s a name", t, w.Pair, embedded.Name),
		})
	}
	if same && w.err == nil {
		w.selfEncoded(Place{Type: inner, Path: path}, ways)
	}
	if err := attemptDecode(ways, whole, reflect.New(t)); err != nil {
		w.report(path, &Problem{
			Reason: fmt.Sprintf("the %s of %v does not read what its %s writes", ways.Methods[1].Name, t,
				ways.Methods[0].Name),
			Cure: fmt.Sprintf("give %v both methods", t),
		})
	}
}

// LeftOut returns the first field of a struct that encode omits because it calls a method of an
// embedded field, which has this index and the type inner. It returns "" if there is none.
// Reflection does not show which type has the method, so LeftOut tries it. First it compares the
// encoding of v, a pointer to a zero struct, with that of a zero inner: same reports whether they
// are equal. Then it changes each other field of v and encodes v again. It changes unexported
// fields only if private is set.
func LeftOut(
	v reflect.Value, index int, inner reflect.Type, encode func(pointer any) ([]byte, error), private bool,
) (lost string, same bool) {
	whole, err := attempt(encode, v)
	if err != nil {
		return "", false
	}
	if part, err := attempt(encode, reflect.New(inner)); err != nil || !bytes.Equal(whole, part) {
		return "", false
	}
	for i := range v.Elem().NumField() {
		f, value := v.Elem().Type().Field(i), v.Elem().Field(i)
		if f.Name == "_" || f.Type.Size() == 0 || i == index {
			continue
		}
		lost = cmp.Or(lost, f.Name)
		if private {
			value = reflect.NewAt(f.Type, value.Addr().UnsafePointer()).Elem()
		}
		if !value.CanSet() || !change(value) {
			continue
		}
		if b, err := attempt(encode, v); err != nil || !bytes.Equal(b, whole) {
			return "", true // the struct has its own method
		}
	}
	return lost, true
}

// change sets v to a value other than zero, and reports whether it knows one.
func change(v reflect.Value) bool {
	switch k := v.Kind(); {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
	case k == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.CanFloat():
		v.SetFloat(1)
	case k == reflect.String:
		v.SetString("1")
	case k == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case k == reflect.Array:
		return v.Len() > 0 && change(v.Index(0))
	case k == reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() && change(f) {
				return true
			}
		}
		return false
	default:
		return false
	}
	return true
}

// attempt encodes the value that v points to.
func attempt(encode func(pointer any) ([]byte, error), v reflect.Value) (b []byte, err error) {
	defer caught(&err)
	return encode(v.Interface())
}

func attemptDecode(ways *Ways, b []byte, v reflect.Value) (err error) {
	defer caught(&err)
	return ways.Decode(b, v.Interface())
}

func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %T", r)
	}
}

const binaryPair = "MarshalBinary and UnmarshalBinary"

// Binary is encoding.BinaryMarshaler and BinaryUnmarshaler.
var Binary = &Format{
	Codec: "Binary",
	Pair:  binaryPair,
	Methods: func(p Place) (*Ways, *Problem) {
		if ways := BinaryWays(p.Type); ways != nil {
			return ways, nil
		}
		return nil, &Problem{Reason: fmt.Sprintf("%v lacks %s", p.Type, binaryPair), Cure: "give it both", Never: true}
	},
}

// BinaryWays returns MarshalBinary and UnmarshalBinary if t or *t has both, else nil.
func BinaryWays(t reflect.Type) *Ways {
	ways := &Ways{
		Methods: [2]Method{
			{Name: "MarshalBinary", Iface: reflect.TypeFor[encoding.BinaryMarshaler]()},
			{Name: "UnmarshalBinary", Iface: reflect.TypeFor[encoding.BinaryUnmarshaler]()},
		},
		Encode: func(v any) ([]byte, error) { return v.(encoding.BinaryMarshaler).MarshalBinary() },
		Decode: func(b []byte, v any) error { return v.(encoding.BinaryUnmarshaler).UnmarshalBinary(b) },
	}
	if !ways.Methods[0].Reaches(t) || !ways.Methods[1].Reaches(t) {
		return nil
	}
	return ways
}
