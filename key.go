package cacheaside

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// keyEncoder returns how a K becomes the key's text in Redis: strings as they are, integers in decimal, and what marshals itself by
// that.
func keyEncoder[K comparable]() (func(K) (string, error), error) {
	t := reflect.TypeFor[K]()
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return func(k K) (text string, err error) {
			defer func() { // of a nil pointer, say
				if p := recover(); p != nil {
					err = caught(p)
				}
			}()
			b, err := any(k).(encoding.TextMarshaler).MarshalText()
			return string(b), err
		}, nil
	}
	switch t.Kind() {
	case reflect.String:
		return func(k K) (string, error) {
			if s, ok := any(k).(string); ok {
				return s, nil
			}
			return reflect.ValueOf(k).String(), nil
		}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(k K) (string, error) { return strconv.FormatInt(reflect.ValueOf(k).Int(), 10), nil }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(k K) (string, error) { return strconv.FormatUint(reflect.ValueOf(k).Uint(), 10), nil }, nil
	default:
		return nil, fmt.Errorf("keys of type %s have no text form: use a string, an integer or an encoding.TextMarshaler", t)
	}
}

// tag escapes an encoded key so that it can stand between braces, where a cluster takes the hash slot from: what is derived from the
// key then shares its slot, whatever braces the key contains. Different keys have different tags.
func tag(key string) string {
	if key == "" {
		return "%" // an empty tag would be ignored; no other key is escaped to this
	}
	if !strings.ContainsAny(key, "%}") || mutant.Active == mutant.TagUnescaped {
		return key
	}
	return tagEscaper.Replace(key)
}

var tagEscaper = strings.NewReplacer("%", "%25", "}", "%7D")

// stableHash is the same in every process: of a loader's name and an encoded key. Names hold no NUL, so no two pairs are alike.
func stableHash(loader, key string) uint64 { return xxhash.Sum64String(loader + "\x00" + key) }

// validName tells whether s may stand in a Redis key before the braces.
func validName(s string) bool { return namePattern.MatchString(s) }

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
