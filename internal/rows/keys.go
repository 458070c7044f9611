package rows

import (
	"hash/maphash"
	"iter"
	"reflect"
	"strings"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Keys are the functions of a loader's keys: texts, names in Redis, hashes.
//
// Canonical converts a caller's key to the key that the loader uses, once, when a call begins. All
// other methods take canonical keys.
type Keys[K comparable] struct {
	keys.Namespace
	Text      func(K) (string, error)
	Parse     func(text string) (key K, ok bool) // returns the canonical key of a text; nil if texts cannot be parsed
	Canonical func(K) (K, error)                 // nil if every key is canonical

	seed     maphash.Seed
	shared   bool // keys contain references
	byText   bool // equal keys need not be ==, and can change: see keys.Identity
	distinct bool // different keys have different texts
}

// Made is how users make a loader's keys.
type Made[K comparable] struct {
	Text      func(K) string // LoaderOptions.Key, or nil
	Normalize func(K) K      // LoaderOptions.Normalize, or nil
	Caught    func(recovered any) error
}

// NewKeys returns the Keys of a loader.
func NewKeys[K comparable](names keys.Namespace, made Made[K]) (Keys[K], error) {
	k := Keys[K]{Namespace: names, seed: maphash.MakeSeed(), shared: !memory.Flat[K]()}
	var err error
	if k.Text, err = keys.Encoder(made.Text, made.Caught); err != nil {
		return k, err
	}
	id, err := keys.Identify[K](made.Text != nil)
	if err != nil {
		return k, err
	}
	k.byText = id.ByText
	k.distinct = made.Text == nil && made.Normalize == nil && id.Canonical == nil && keys.Distinct[K]()
	k.Canonical = canonicalKey(made, id.Canonical)
	if made.Text == nil {
		k.Parse = k.parser()
	}
	return k, nil
}

// canonicalKey returns Keys.Canonical. It applies the user's function and then canonical. A panic
// of the user's function becomes an error.
func canonicalKey[K comparable](made Made[K], canonical func(K) K) func(K) (K, error) {
	if made.Normalize == nil && canonical == nil {
		return nil
	}
	return func(key K) (result K, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = made.Caught(p)
			}
		}()
		if made.Normalize != nil {
			key = made.Normalize(key)
		}
		if canonical != nil {
			key = canonical(key)
		}
		return key, nil
	}
}

// canonical returns the canonical key of a caller's key.
func (k *Keys[K]) canonical(key K) (K, error) {
	if k.Canonical == nil {
		return key, nil
	}
	return k.Canonical(key)
}

// Named returns the canonical key of a caller's key, and its text.
func (k *Keys[K]) Named(key K) (canonical K, text string, err error) {
	if canonical, err = k.canonical(key); err == nil {
		text, err = k.Text(canonical)
	}
	return canonical, text, err
}

// A Batch holds the keys of one call, in their order.
type Batch[K comparable] struct {
	Canonical []K
	Asked     []K // the caller's spellings
}

// Batch returns the keys of a call, except those that have no canonical key. It returns the errors
// of these keys, each wrapped by wrap.
func (k *Keys[K]) Batch(keys []K, wrap func(error) error) (b Batch[K], errs map[K]error) {
	if k.Canonical == nil {
		return Batch[K]{keys, keys}, nil
	}
	b = Batch[K]{make([]K, 0, len(keys)), make([]K, 0, len(keys))}
	for _, key := range keys {
		canonical, err := k.Canonical(key)
		if err == nil {
			b.Canonical, b.Asked = append(b.Canonical, canonical), append(b.Asked, key)
			continue
		}
		if errs == nil {
			errs = make(map[K]error)
		}
		errs[key] = wrap(err)
	}
	return b, errs
}

// Without returns the keys except those for whose index done returns true.
func (b Batch[K]) Without(done func(i int) bool) (rest Batch[K]) {
	same := len(b.Canonical) > 0 && &b.Canonical[0] == &b.Asked[0] // both are one slice
	for i, canonical := range b.Canonical {
		if done(i) {
			continue
		}
		if rest.Canonical == nil {
			rest.Canonical = make([]K, 0, len(b.Canonical)-i)
		}
		rest.Canonical = append(rest.Canonical, canonical)
		if !same {
			rest.Asked = append(rest.Asked, b.Asked[i])
		}
	}
	if same {
		rest.Asked = rest.Canonical
	}
	return rest
}

// parser returns Keys.Parse. It rejects a text whose key is not canonical.
func (k *Keys[K]) parser() func(text string) (K, bool) {
	parse := keys.Decoder(k.Text)
	if parse == nil || k.Canonical == nil {
		return parse
	}
	canonical := k.Canonical
	return func(text string) (key K, ok bool) {
		if key, ok = parse(text); !ok {
			return key, false
		}
		again, err := canonical(key)
		return key, err == nil && again == key
	}
}

// hash returns a hash that is valid only in this process and loader. Keys must be comparable by
// ==.
func (k *Keys[K]) hash(key K) uint64 {
	return maphash.Comparable(k.seed, key)
}

// hashOf returns the hash of any key. It hashes text, the key's text, if keys are compared by
// text.
func (k *Keys[K]) hashOf(key K, text string) uint64 {
	if k.byText {
		return maphash.String(k.seed, text)
	}
	return k.hash(key)
}

// detach copies the strings of a key for the memory tier. So the key does not keep a larger string
// alive, such as the text of a request.
func (k *Keys[K]) detach(key *K) {
	if k.shared {
		cloneStrings(reflect.ValueOf(key).Elem())
	}
}

func cloneStrings(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() { // not an unexported field
			v.SetString(strings.Clone(v.String()))
		}
	case reflect.Struct:
		for _, f := range v.Fields() {
			cloneStrings(f)
		}
	case reflect.Array:
		for i := range v.Len() {
			cloneStrings(v.Index(i))
		}
	}
}

// Chunks splits keys into slices of at most size keys. It drops a key that the slice already
// contains.
func Chunks[K comparable](keys iter.Seq[K], size int) iter.Seq[[]K] {
	return func(yield func([]K) bool) {
		var chunk []K
		seen := make(map[K]struct{})
		for key := range keys {
			if _, again := seen[key]; again {
				continue
			}
			seen[key] = struct{}{}
			if chunk = append(chunk, key); len(chunk) < size {
				continue
			}
			if !yield(chunk) {
				return
			}
			chunk = nil
			clear(seen)
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}
