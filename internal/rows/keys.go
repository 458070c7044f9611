package rows

import (
	"hash/maphash"
	"reflect"
	"strings"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Keys are the keys of a loader: their texts, their names in Redis, their hashes.
type Keys[K comparable] struct {
	keys.Namespace
	Text  func(K) (string, error)
	Parse func(text string) (key K, ok bool) // the key of a text; nil: it cannot be had

	seed   maphash.Seed
	shared bool // keys refer to other memory
}

// NewKeys makes the Keys of a loader. text is LoaderOptions.Key, or nil.
func NewKeys[K comparable](names keys.Namespace, text func(K) string, caught func(recovered any) error) (Keys[K], error) {
	k := Keys[K]{Namespace: names, seed: maphash.MakeSeed(), shared: !memory.Flat[K]()}
	var err error
	if k.Text, err = keys.Encoder(text, caught); err == nil && text == nil {
		k.Parse = keys.Decoder(k.Text)
	}
	return k, err
}

// hash is of this process and loader only.
func (k *Keys[K]) hash(key K) uint64 {
	return maphash.Comparable(k.seed, key)
}

// texts are the texts of keys; of a key without one, the empty text.
func (k *Keys[K]) texts(keys []K) []string {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i], _ = k.Text(key)
	}
	return texts
}

// owned is a key for the memory tier. It keeps nothing alive that a caller has cut it from, such as
// the text of a request.
func (k *Keys[K]) owned(key K) K {
	if k.shared {
		ownTexts(reflect.ValueOf(&key).Elem())
	}
	return key
}

func ownTexts(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() { // not an unexported field
			v.SetString(strings.Clone(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			ownTexts(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			ownTexts(v.Index(i))
		}
	}
}
