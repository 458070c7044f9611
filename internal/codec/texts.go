package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

// hasReplacement reports whether encoded contains U+FFFD in any spelling. encoding/json writes it
// for bytes that are not UTF-8. Up to Go 1.26 it is an escape then, unlike a U+FFFD of the value.
// Since Go 1.27 both are the rune itself. So the encoding only shows that the value must be read.
func hasReplacement(encoded []byte) bool {
	return bytes.Contains(encoded, []byte("\ufffd")) ||
		bytes.Contains(encoded, []byte("ufffd")) || bytes.Contains(encoded, []byte("uFFFD"))
}

// maxTextDepth bounds the recursion over a value: encoding/json decodes no more.
const maxTextDepth = 10_000

// replaced reports whether v contains text that encoding/json replaces because it is not UTF-8.
func replaced(v reflect.Value, depth int) bool {
	t := v.Type()
	switch {
	case depth > maxTextDepth:
		return true
	case t == momentType:
		return false
	case carry.EncodesItself(t, v.CanAddr()):
		return replacedInside(v)
	}
	switch depth++; t.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && replaced(v.Elem(), depth)
	case reflect.Slice, reflect.Array:
		if k := t.Elem().Kind(); k >= reflect.Bool && k <= reflect.Float64 && t.Elem().NumMethod() == 0 {
			return false
		}
		for i := range v.Len() {
			if replaced(v.Index(i), depth) {
				return true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if replacedKey(it.Key(), depth) || replaced(it.Value(), depth) {
				return true
			}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if f.IsExported() || carry.IsStruct(f.Type) {
				if replaced(v.Field(i), depth) {
					return true
				}
			}
		}
	}
	return false
}

// replacedKey is replaced for the key of a map. A string is written as it is, without its methods.
func replacedKey(key reflect.Value, depth int) bool {
	if key.Kind() == reflect.String {
		return !utf8.ValidString(key.String())
	}
	if text, err, ok := carry.KeyText(key); ok {
		return err != nil || !utf8.Valid(text)
	}
	return replaced(key, depth)
}

// replacedInside is replaced for a value with methods that encode it. Their effect is unknown, so
// the value is encoded and decoded. If another value comes back, the reason can be a part that
// never comes back the same, such as a cache. Thus the value is reported only if it contains bytes
// that are not UTF-8. A value that contains a lock may be in use, so it is not read, but reported.
func replacedInside(v reflect.Value) bool {
	if !v.CanInterface() {
		return true
	}
	from := v
	if v.CanAddr() {
		from = v.Addr()
	}
	encoded, err := json.Marshal(from.Interface())
	switch {
	case err != nil:
		return true
	case !hasReplacement(encoded):
		return false
	case guarded(v.Type(), make(map[reflect.Type]bool)):
		return true
	}
	again := reflect.New(v.Type())
	if json.Unmarshal(encoded, again.Interface()) != nil {
		return true
	}
	if reflect.DeepEqual(v.Interface(), again.Elem().Interface()) {
		return false
	}
	return notText(v, make(map[visit]bool), 0)
}

// guarded reports whether a value of t contains a lock or an atomic variable.
func guarded(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || t == momentType || t == reflect.TypeFor[time.Location]() {
		return false
	}
	seen[t] = true
	if path := t.PkgPath(); path == "sync" || path == "sync/atomic" {
		return true
	}
	switch t.Kind() {
	case reflect.Map:
		return guarded(t.Key(), seen) || guarded(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return guarded(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if guarded(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// visit is a pointer that notText has followed.
type visit struct {
	address uintptr
	t       reflect.Type
}

// notText reports whether a string or byte slice in the memory of v is not UTF-8, also in fields
// that are not exported.
func notText(v reflect.Value, seen map[visit]bool, depth int) bool {
	t := v.Type()
	switch {
	case depth > maxTextDepth:
		return true
	case t == momentType, t == reflect.TypeFor[time.Location](): // ASCII, and shared
		return false
	}
	switch depth++; t.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Interface:
		return !v.IsNil() && notText(v.Elem(), seen, depth)
	case reflect.Pointer:
		target := visit{v.Pointer(), t}
		if v.IsNil() || seen[target] {
			return false
		}
		seen[target] = true
		return notText(v.Elem(), seen, depth)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return !utf8.Valid(bytesOf(v))
		}
		for i := range v.Len() {
			if notText(v.Index(i), seen, depth) {
				return true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if notText(it.Key(), seen, depth) || notText(it.Value(), seen, depth) {
				return true
			}
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if notText(field, seen, depth) {
				return true
			}
		}
	}
	return false
}

// bytesOf copies the bytes of a slice or array, which need not be addressable.
func bytesOf(v reflect.Value) []byte {
	b := make([]byte, v.Len())
	for i := range b {
		b[i] = byte(v.Index(i).Uint())
	}
	return b
}
