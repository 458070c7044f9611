package keys

import (
	"encoding"
	"reflect"
	"strconv"
)

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
