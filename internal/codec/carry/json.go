package carry

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

const jsonPair = "MarshalJSON and UnmarshalJSON"

// JSON is the Format of encoding/json.
var JSON = &Format{
	Codec:   "JSON",
	Pair:    jsonPair,
	Omit:    `json:"-"`,
	Methods: jsonMethods,
	Key:     jsonKey,
	Field:   jsonField,
}

var (
	encodesJSON = [2]Method{ // the first one that exists counts
		{"MarshalJSON", reflect.TypeFor[json.Marshaler]()}, {"MarshalText", reflect.TypeFor[encoding.TextMarshaler]()},
	}
	decodesJSON = [2]Method{
		{"UnmarshalJSON", reflect.TypeFor[json.Unmarshaler]()}, {"UnmarshalText", reflect.TypeFor[encoding.TextUnmarshaler]()},
	}
	marshalText, unmarshalText = encodesJSON[1], decodesJSON[1]
)

// jsonMethods returns the methods that encoding/json calls. To encode a T without an address, such
// as the value of a map, encoding/json does not call the methods of *T. To decode an unnamed T, it
// calls them only through a pointer to the T. A T that can only decode itself is treated as if it
// had no methods.
func jsonMethods(p Place) (*Ways, *Problem) {
	t, pointer := p.Type, reflect.PointerTo(p.Type)
	encode, decode := -1, -1
	for i := 1; i >= 0; i-- {
		if encodesJSON[i].On(t) || p.Addressable && encodesJSON[i].On(pointer) {
			encode = i
		}
		if p.Found && decodesJSON[i].On(pointer) {
			decode = i
		}
	}
	switch {
	case encode >= 0 && decode >= 0:
		return &Ways{[2]Method{encodesJSON[encode], decodesJSON[decode]}, json.Marshal, json.Unmarshal}, nil
	case encode >= 0:
		return nil, oneWay(t, encodesJSON[encode], decodesJSON[encode])
	case decode < 0:
		return nil, nil
	}
	for _, m := range encodesJSON {
		if m.On(pointer) {
			return nil, &Problem{
				Why:  fmt.Sprintf("the %s of *%v is not called for a value of a map", m.Name, t),
				Cure: fmt.Sprintf("make it a method of %v, or the map's values pointers", t),
			}
		}
	}
	return nil, nil
}

func oneWay(t reflect.Type, has, lacks Method) *Problem {
	return &Problem{
		Why:  fmt.Sprintf("%v has %s, and no %s that is called to read it back", t, has.Name, lacks.Name),
		Cure: fmt.Sprintf("give it %s", lacks.Name),
	}
}

// jsonKey judges the key of a map. A string is written as it is, and other types by their
// MarshalText, or as integers.
func jsonKey(p Place) (*Ways, *Problem) {
	t, pointer := p.Type, reflect.PointerTo(p.Type)
	encodes, decodes := marshalText.On(t), unmarshalText.On(pointer)
	kind := t.Kind()
	integer := kind >= reflect.Int && kind <= reflect.Uintptr
	switch {
	case kind == reflect.String:
		return nil, nil
	case encodes && decodes:
		return &Ways{
			[2]Method{marshalText, unmarshalText},
			func(v any) ([]byte, error) { return v.(encoding.TextMarshaler).MarshalText() },
			func(b []byte, v any) error { return v.(encoding.TextUnmarshaler).UnmarshalText(b) },
		}, nil
	case encodes:
		return nil, oneWay(t, marshalText, unmarshalText)
	case !integer:
		return nil, &Problem{
			Why:   fmt.Sprintf("a %v is no key of a JSON object", t),
			Cure:  fmt.Sprintf("use strings or integers, or give %v MarshalText and UnmarshalText", t),
			Never: true,
		}
	case decodes && marshalText.On(pointer):
		return nil, &Problem{
			Why:  fmt.Sprintf("the MarshalText of *%v is not called for a key of a map", t),
			Cure: fmt.Sprintf("make it a method of %v", t),
		}
	}
	return nil, nil
}

// jsonField returns how encoding/json encodes a field.
func jsonField(f reflect.StructField) Field {
	t := f.Type
	if t.Name() == "" && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	structure := t.Kind() == reflect.Struct
	tag := f.Tag.Get("json")
	name, options, _ := strings.Cut(tag, ",")
	if !validName(name) {
		name = ""
	}
	switch {
	case !f.IsExported() && (!f.Anonymous || !structure):
		return Field{Problem: Unexported(jsonPair)}
	case tag == "-":
		return Field{Problem: Omitted(`json:"-"`, jsonPair)}
	case !f.IsExported() && f.Type.Kind() == reflect.Pointer:
		return Field{Problem: UnexportedPointer()}
	case name == "" && f.Anonymous && structure:
		return Field{Inline: true}
	case !f.IsExported() && reaches(encodesJSON, t):
		return Field{Problem: Unexported(jsonPair)}
	case slices.Contains(strings.Split(options, ","), "string") && quotes(t) && hasMethods(t):
		return Field{Problem: &Problem{Why: fmt.Sprintf(`the option "string" of its tag, and the methods of %v, exclude each other`, t), Cure: "take the option away"}}
	case name == "":
		return Field{Name: f.Name}
	}
	return Field{Name: name, Tagged: true}
}

// Unexported is the problem of an unexported field.
func Unexported(pair string) *Problem {
	return &Problem{Why: "it is not exported", Cure: "export it, give its struct " + pair}
}

// UnexportedPointer is the problem of an embedded pointer to an unexported struct.
func UnexportedPointer() *Problem {
	return &Problem{Why: "it embeds a pointer to a type that is not exported, which cannot be set", Cure: "embed it without a pointer, export the type"}
}

// Omitted is the problem of a field that its tag omits.
func Omitted(tag, pair string) *Problem {
	return &Problem{Why: "its tag is " + tag, Cure: "take the tag away, give its struct " + pair}
}

// quotes reports whether the option "string" applies to t.
func quotes(t reflect.Type) bool {
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 || t.Kind() == reflect.String
}

// reaches reports whether t or *t has one of two methods.
func reaches(methods [2]Method, t reflect.Type) bool {
	return methods[0].Reaches(t) || methods[1].Reaches(t)
}

func hasMethods(t reflect.Type) bool {
	return reaches(encodesJSON, t) || reaches(decodesJSON, t)
}

// validName reports whether encoding/json accepts a name in a tag.
func validName(name string) bool {
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return name != ""
}
