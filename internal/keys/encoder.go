package keys

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
)

// Encoder returns how a K becomes its text: by custom, if that is not nil; else by its MarshalText,
// if it has one; else strings, and types made of them, are their own text, and integers are written
// in decimal. It fails for any other K.
//
// A panic in custom or MarshalText becomes the error that caught makes of what was recovered. An
// error of MarshalText is returned as it is, so what it tells of the key is its author's choice;
// the errors made here tell the type at most. The text may be any bytes.
func Encoder[K comparable](custom func(K) string, caught func(recovered any) error) (func(K) (string, error), error) {
	t := reflect.TypeFor[K]()
	switch {
	case custom != nil:
		return guarded(func(k K) (string, error) { return custom(k), nil }, caught), nil
	case t.Implements(textMarshaler): // before its kind: a named string may marshal itself, too
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
		return nil, fmt.Errorf("keys of type %s have no text form: use a string, an integer or an encoding.TextMarshaler, or set LoaderOptions.Key", t)
	}
}

// Distinct reports whether the texts that Encoder makes of different keys are sure to differ, as
// those of strings and integers do. A MarshalText may return one text for several keys.
func Distinct[K comparable]() bool { return !reflect.TypeFor[K]().Implements(textMarshaler) }

func marshaled[K comparable](k K) (string, error) {
	b, err := any(k).(encoding.TextMarshaler).MarshalText()
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// guarded turns a panic of encode, which is the user's, into an error.
func guarded[K comparable](encode func(K) (string, error), caught func(recovered any) error) func(K) (string, error) {
	return func(k K) (text string, err error) {
		defer func() {
			if p := recover(); p != nil { // nil: it has returned, or calls runtime.Goexit, which is not ours to stop
				err = caught(p)
			}
		}()
		return encode(k)
	}
}

// Decoder returns how a text becomes the K again that encode, which is Encoder's without a custom
// function, makes that text of: by K's UnmarshalText, if it has a MarshalText, too; else as a
// string or an integer. Nil: such a K cannot be had of its text.
//
// It answers false for any text that is no K's, also for one that can be read as a K but is not
// what that K's would be, as "007" for an integer: in another program, with keys of another type,
// it may be the text of another key. A panic in UnmarshalText is such an answer, too.
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
		if err := parse(text, &key); err != nil || key != key { //nolint:gocritic // no map would find it
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
