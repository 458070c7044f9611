package keys

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
)

// Encoder returns a function that encodes a K as text. It uses custom if that is not nil, else
// K's MarshalText if it has one. Otherwise strings, and types made of them, are their own text,
// and integers are written in decimal. Encoder fails for any other K. The text may be any bytes.
//
// caught converts the recovered value of a panic in custom or MarshalText into an error. An error
// of MarshalText is returned unchanged, so its author decides what it shows of the key. The
// errors of this package show at most the type.
func Encoder[K comparable](custom func(K) string, caught func(recovered any) error) (func(K) (string, error), error) {
	t := reflect.TypeFor[K]()
	switch {
	case custom != nil:
		return guarded(func(k K) (string, error) { return custom(k), nil }, caught), nil
	case t.Implements(textMarshaler): // before its kind: a named string may have a MarshalText, too
		return guarded(marshaled[K], caught), nil
	}
	switch t.Kind() {
	case reflect.String:
		return func(k K) (string, error) { return reflect.ValueOf(k).String(), nil }, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(k K) (string, error) { return strconv.FormatInt(reflect.ValueOf(k).Int(), 10), nil }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(k K) (string, error) { return strconv.FormatUint(reflect.ValueOf(k).Uint(), 10), nil }, nil
	default:
		return nil, fmt.Errorf("keys of type %s have no text form: use a string, an integer or an "+
			"encoding.TextMarshaler, or set LoaderOptions.Key", t)
	}
}

// Distinct reports whether Encoder's texts of different keys always differ, as those of strings
// and integers do. A MarshalText may return one text for several keys.
func Distinct[K comparable]() bool { return !reflect.TypeFor[K]().Implements(textMarshaler) }

func marshaled[K comparable](k K) (string, error) {
	b, err := any(k).(encoding.TextMarshaler).MarshalText()
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// guarded converts a panic of encode, which may be the user's function, into an error.
func guarded[K comparable](encode func(K) (string, error), caught func(recovered any) error) func(K) (string, error) {
	return func(k K) (text string, err error) {
		defer func() {
			if p := recover(); p != nil { // nil: encode has returned, or has called runtime.Goexit, which continues
				err = caught(p)
			}
		}()
		return encode(k)
	}
}

// Decoder returns a function that converts a text back to its K, or nil if that is not possible
// for K. encode is the result of Encoder without a custom function. A K with a MarshalText is
// decoded by its UnmarshalText, others as a string or an integer.
//
// The function reports false for a text that encode does not return for any K. This includes texts
// that can be parsed but are not canonical, such as "007" for an integer: in another program with
// keys of another type, it may be the text of another key. The function also reports false after a
// panic in UnmarshalText.
func Decoder[K comparable](encode func(K) (string, error)) func(text string) (key K, ok bool) {
	parse := parser[K]()
	if parse == nil {
		return nil
	}
	return func(text string) (key K, ok bool) {
		defer func() {
			if recover() != nil {
				var none K
				key, ok = none, false
			}
		}()
		if err := parse(text, &key); err != nil || key != key { //nolint:gocritic // no map finds it
			var none K
			return none, false
		}
		again, err := encode(key)
		return key, err == nil && again == text
	}
}

func parser[K comparable]() func(text string, to *K) error {
	t := reflect.TypeFor[K]()
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) { // before its kind: see Encoder
		if !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			return nil
		}
		return func(text string, to *K) error { return any(to).(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) }
	}
	switch t.Kind() {
	case reflect.String:
		return func(text string, to *K) error { reflect.ValueOf(to).Elem().SetString(text); return nil }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(text string, to *K) error {
			n, err := strconv.ParseInt(text, 10, t.Bits())
			reflect.ValueOf(to).Elem().SetInt(n)
			return err
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(text string, to *K) error {
			n, err := strconv.ParseUint(text, 10, t.Bits())
			reflect.ValueOf(to).Elem().SetUint(n)
			return err
		}
	default:
		return nil
	}
}
