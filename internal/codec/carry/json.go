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

// V2 reports whether encoding/json is built on encoding/json/v2, as it is since Go 1.27. It then
// calls more methods, and calls them in more places.
var V2 = reflect.TypeFor[json.RawMessage]().PkgPath() != "encoding/json"

var (
	marshalText   = Method{Name: "MarshalText", Iface: reflect.TypeFor[encoding.TextMarshaler]()}
	appendText    = Method{Name: "AppendText", Iface: reflect.TypeFor[encoding.TextAppender]()}
	unmarshalText = Method{Name: "UnmarshalText", Iface: reflect.TypeFor[encoding.TextUnmarshaler]()}

	// The methods of each release, the preferred ones first, and what reads what they write.
	encodesJSON, decodesJSON = jsonLists(V2)
	reader                   = map[string]string{
		"MarshalJSONTo": "UnmarshalJSONFrom", "MarshalJSON": "UnmarshalJSON",
		"AppendText": "UnmarshalText", "MarshalText": "UnmarshalText",
	}
)

func jsonLists(v2 bool) (encodes, decodes []Method) {
	encodes = []Method{{Name: "MarshalJSON", Iface: reflect.TypeFor[json.Marshaler]()}, marshalText}
	decodes = []Method{{Name: "UnmarshalJSON", Iface: reflect.TypeFor[json.Unmarshaler]()}, unmarshalText}
	if v2 {
		encodes = append([]Method{{Name: "MarshalJSONTo", has: marshalsTo}}, slices.Insert(encodes, 1, appendText)...)
		decodes = append([]Method{{Name: "UnmarshalJSONFrom", has: unmarshalsFrom}}, decodes...)
	}
	return encodes, decodes
}

// marshalsTo reports whether t has the MarshalJSONTo of encoding/json/v2. Go 1.26 has no such
// package, so the interface cannot be named here.
func marshalsTo(t reflect.Type) bool {
	m, ok := t.MethodByName("MarshalJSONTo")
	return ok && isStream(t, m, "Encoder")
}

func unmarshalsFrom(t reflect.Type) bool {
	m, ok := t.MethodByName("UnmarshalJSONFrom")
	return ok && isStream(t, m, "Decoder")
}

// isStream reports whether the signature of m is func(*jsontext.NAME) error.
func isStream(t reflect.Type, m reflect.Method, name string) bool {
	receiver := 1
	if t.Kind() == reflect.Interface {
		receiver = 0
	}
	f := m.Type
	if f.NumIn() != receiver+1 || f.NumOut() != 1 || f.Out(0) != reflect.TypeFor[error]() {
		return false
	}
	arg := f.In(receiver)
	return arg.Kind() == reflect.Pointer && arg.Elem().Name() == name &&
		arg.Elem().PkgPath() == "encoding/json/jsontext"
}

// EncodesItself reports whether encoding/json calls a method of a value to encode it.
func EncodesItself(t reflect.Type, addressable bool) bool {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return false // its target is encoded
	}
	return first(encodesJSON, t, addressable) >= 0
}

// KeyText returns the text that a method of the key of a map encodes it as. It reports false if no
// method is called.
func KeyText(key reflect.Value) (text []byte, err error, ok bool) { //nolint:revive // ok comes last
	if !key.CanInterface() || !textual(key.Type()) {
		return nil, nil, false
	}
	text, err = keyText(key.Interface())
	return text, err, true
}

func textual(t reflect.Type) bool { return marshalText.On(t) || V2 && appendText.On(t) }

func keyText(v any) ([]byte, error) {
	if a, ok := v.(encoding.TextAppender); V2 && ok {
		return a.AppendText(nil)
	}
	return v.(encoding.TextMarshaler).MarshalText()
}

// first returns the index of the first method that t has, or *t if a pointer can be taken, or -1.
func first(methods []Method, t reflect.Type, addressable bool) int {
	return slices.IndexFunc(methods, func(m Method) bool {
		return m.On(t) || addressable && m.On(reflect.PointerTo(t))
	})
}

// jsonMethods returns the methods that encoding/json calls. To encode a T without an address, such
// as the value of a map, encoding/json does not call the methods of *T. To decode an unnamed T, Go
// 1.26 calls them only through a pointer to the T. A T that can only decode itself is treated as if
// it had no methods, except that UnmarshalText reads only strings.
func jsonMethods(p Place) (*Ways, *Problem) {
	t, pointer := p.Type, reflect.PointerTo(p.Type)
	encode, decode := first(encodesJSON, t, p.Addressable), -1
	if p.Found || V2 {
		decode = first(decodesJSON, pointer, false)
	}
	switch {
	case encode >= 0 && decode >= 0:
		return &Ways{[2]Method{encodesJSON[encode], decodesJSON[decode]}, json.Marshal, json.Unmarshal}, nil
	case encode >= 0:
		return nil, oneWay(t, encodesJSON[encode].Name, reader[encodesJSON[encode].Name])
	case decode < 0:
		return nil, nil
	}
	for _, m := range encodesJSON {
		if m.On(pointer) {
			return nil, &Problem{
				Reason: fmt.Sprintf("the %s of *%v is not called for a value of a map", m.Name, t),
				Cure:   fmt.Sprintf("make it a method of %v, or the map's values pointers", t),
			}
		}
	}
	if decodesJSON[decode].Name == "UnmarshalText" && t.Kind() != reflect.String {
		return nil, oneWay(t, "UnmarshalText", "MarshalText")
	}
	return nil, readsLess(t, decodesJSON[decode])
}

// readsLess returns a problem with a struct that is encoded field by field, and decoded by the
// method of an embedded type, which does not know the other fields. Go's types do not show whose
// method it is, so each other field is encoded and decoded.
func readsLess(t reflect.Type, m Method) *Problem {
	embeds := func(f reflect.StructField) bool { return f.Anonymous && m.Reaches(f.Type) }
	if t.Kind() != reflect.Struct || !slices.ContainsFunc(reflect.VisibleFields(t), embeds) {
		return nil
	}
	for i := range t.NumField() {
		f, v, again := t.Field(i), reflect.New(t), reflect.New(t)
		if !f.IsExported() || embeds(f) || !change(v.Elem().Field(i)) {
			continue
		}
		b, err := attempt(json.Marshal, v)
		if err != nil || attemptDecode(&Ways{Decode: json.Unmarshal}, b, again) != nil {
			continue // nothing is known
		}
		if again.Elem().Field(i).IsZero() {
			return &Problem{
				Reason: fmt.Sprintf("the %s of %v is that of an embedded type, which leaves %s out", m.Name, t, f.Name),
				Cure:   fmt.Sprintf("give %v %s, or the embedded field a name", t, jsonPair),
			}
		}
	}
	return nil
}

func oneWay(t reflect.Type, has, lacks string) *Problem {
	called := "is called to read it back"
	if lacks == "MarshalText" {
		called = "writes what it reads"
	}
	return &Problem{
		Reason: fmt.Sprintf("%v has %s, and no %s that %s", t, has, lacks, called),
		Cure:   fmt.Sprintf("give it %s", lacks),
	}
}

// jsonKey judges the key of a map. A string is written as it is, and other types by their
// MarshalText, or as integers, and since Go 1.27 as floats.
func jsonKey(p Place) (*Ways, *Problem) {
	t, pointer := p.Type, reflect.PointerTo(p.Type)
	encodes, decodes := textual(t), unmarshalText.On(pointer)
	kind := t.Kind()
	number := kind >= reflect.Int && kind <= reflect.Uintptr || V2 &&
		(kind == reflect.Float32 || kind == reflect.Float64)
	switch {
	case kind == reflect.String:
		return nil, nil
	case encodes && decodes:
		return &Ways{
			[2]Method{marshalText, unmarshalText},
			keyText,
			func(b []byte, v any) error { return v.(encoding.TextUnmarshaler).UnmarshalText(b) },
		}, nil
	case encodes:
		return nil, oneWay(t, "MarshalText", "UnmarshalText")
	case !number:
		return nil, &Problem{
			Reason: fmt.Sprintf("a %v is no key of a JSON object", t),
			Cure:   fmt.Sprintf("use strings or integers, or give %v MarshalText and UnmarshalText", t),
			Never:  kind != reflect.Interface || !V2,
		}
	case decodes && textual(pointer):
		return nil, &Problem{
			Reason: fmt.Sprintf("the MarshalText of *%v is not called for a key of a map", t),
			Cure:   fmt.Sprintf("make it a method of %v", t),
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
	name, list, _ := strings.Cut(tag, ",")
	options := strings.Split(list, ",")
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
	case ambiguous(tag):
		return Field{Problem: &Problem{
			Reason: fmt.Sprintf("Go 1.26 and 1.27 read its tag json:%q differently", tag),
			Cure:   "write the tag without special characters and new options",
			Mixed:  true,
		}}
	case name == "" && f.Anonymous && structure:
		return Field{Inline: true}
	case !f.IsExported() && (hasMethods(t) || V2 && slices.Contains(options, "omitzero") && hasIsZero(t)):
		return Field{Problem: Unexported(jsonPair)}
	case V2 && slices.ContainsFunc(options, isFormat):
		return Field{Problem: &Problem{Reason: `encoding/json refuses the option "format" of its tag`,
			Cure: "take the option away", Never: true}}
	case !V2 && slices.Contains(options, "string") && quotes(t) && hasMethods(t):
		return Field{Problem: &Problem{Reason: fmt.Sprintf(
			`the option "string" of its tag, and the methods of %v, exclude each other`, t),
			Cure: "take the option away"}}
	case name == "":
		return Field{Name: f.Name}
	}
	return Field{Name: name, Tagged: true}
}

// ambiguous reports whether encoding/json reads a tag differently if it is built on version 2: it
// accepts more names, ends an option where its letters end, and knows the option "embed".
func ambiguous(tag string) bool {
	name, list, _ := strings.Cut(tag, ",")
	if name != "" && !validName(name) && !strings.ContainsAny(name[:1], "\\'\"`") {
		return true // version 1 takes the name of the field
	}
	return slices.ContainsFunc(strings.Split(list, ","), func(option string) bool {
		word := option
		if i := strings.IndexFunc(option,
			func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) }); i >= 0 {
			word = option[:i]
		}
		switch word {
		case "embed":
			return true
		case "string", "omitempty", "omitzero":
			return word != option
		}
		return false
	})
}

// isFormat reports whether an option of a tag is a format, which version 1 ignores.
func isFormat(option string) bool { return strings.HasPrefix(option, "format:") }

func hasIsZero(t reflect.Type) bool {
	m := Method{Iface: reflect.TypeFor[interface{ IsZero() bool }]()}
	return m.Reaches(t)
}

// Unexported is the problem of an unexported field.
func Unexported(pair string) *Problem {
	return &Problem{Reason: "it is not exported", Cure: "export it, give its struct " + pair}
}

// UnexportedPointer is the problem of an embedded pointer to an unexported struct.
func UnexportedPointer() *Problem {
	return &Problem{Reason: "it embeds a pointer to a type that is not exported, which cannot be set",
		Cure: "embed it without a pointer, export the type"}
}

// Omitted is the problem of a field that its tag omits.
func Omitted(tag, pair string) *Problem {
	return &Problem{Reason: "its tag is " + tag, Cure: "take the tag away, give its struct " + pair}
}

// quotes reports whether the option "string" applies to t.
func quotes(t reflect.Type) bool {
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 || t.Kind() == reflect.String
}

// hasMethods reports whether t or *t has a method that encoding/json calls.
func hasMethods(t reflect.Type) bool {
	reached := func(m Method) bool { return m.Reaches(t) }
	return slices.ContainsFunc(encodesJSON, reached) || slices.ContainsFunc(decodesJSON, reached)
}

// IsStruct reports whether t is a struct or a pointer to one, so that its fields can be embedded.
func IsStruct(t reflect.Type) bool {
	if t.Name() == "" && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
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
