// Package rows reads the rows of one loader, from the memory tier or by package fetch. A Reader
// is the internal part of a cacheaside.Loader. Only code that needs the types of a loader has
// type parameters; the rest is Core.
package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Options are the options of one loader.
type Options[K comparable, V any] struct {
	CoreOptions
	Keys  Keys[K]
	Codec *codec.Codec[V]

	Load   func(ctx context.Context, keys []K) (map[K]V, error)
	Failed func(error) (errs map[K]error, partial bool) // returns the errors of single keys in an error of Load
	Weight func(V) int64                                // LoaderOptions.Weight, or nil
	Groups func(K, V) []string                          // LoaderOptions.Groups, or nil
}

// A Reader reads the rows of a loader. It is safe for concurrent use.
type Reader[K comparable, V any] struct {
	Core
	Keys    Keys[K]
	options Options[K, V]
}

// New returns a Reader.
func New[K comparable, V any](cache *Shared, o Options[K, V]) *Reader[K, V] {
	r := &Reader[K, V]{Keys: o.Keys, options: o}
	if o.Groups != nil {
		o.CoreOptions.Fetch.GroupsOf = r.groupsOf
	}
	r.start(cache, o.CoreOptions, o.Keys.Namespace, r)
	return r
}

// groupsOf implements fetch.GroupsOf.
func (r *Reader[K, V]) groupsOf(key, value any, null bool) (hashes []uint64, err error) {
	var v V
	if !null {
		v = Value[V](value)
	}
	for _, name := range r.options.Groups(*key.(*K), v) {
		spelled, err := r.GroupName(name)
		if err != nil {
			return nil, err
		}
		if spelled != "" {
			hashes = append(hashes, keys.GroupHash(r.options.Fetch.Name, spelled))
		}
	}
	slices.Sort(hashes)
	return slices.Compact(hashes), nil
}

// A keyedRound is a round and the key that it reads.
type keyedRound[K comparable] struct {
	round
	key K
}

// set initializes a new keyedRound for key, and returns its round.
func (k *keyedRound[K]) set(keys *Keys[K], key K, text string) *round {
	k.key = key
	k.Result.Begin(&k.round, &k.key, text, keys.hashOf(key, text))
	return &k.round
}

// keyOf returns the key of a round.
func keyOf[K comparable](r *fetch.Round) K { return *r.Key.(*K) }

// textFor returns the text that identifies the rounds of a key. With a shadow it returns a
// substitute for a key that has no text, so that the key can be read.
func (r *Reader[K, V]) textFor(key K) (text string, err error) {
	if key != key { //nolint:gocritic // see flight.ErrNotEqual
		return "", flight.ErrNotEqual
	}
	text, err = r.Keys.Text(key)
	if err != nil && r.Shadow != nil {
		return "\xff" + strconv.FormatUint(r.Keys.hash(key), 16), nil
	}
	return text, err
}

// Get reads the row of a key that Remembered did not find.
func (r *Reader[K, V]) Get(ctx context.Context, mode fetch.Mode, key K) (*fetch.Round, error) {
	text, err := r.textFor(key)
	if err != nil {
		r.Counters.Misses.Add(1)
		return nil, err
	}
	return r.get(ctx, mode, text, func() *round { return new(keyedRound[K]).set(&r.Keys, key, text) })
}

// Refresh loads a row regardless of what is cached.
func (r *Reader[K, V]) Refresh(ctx context.Context, key K) (*fetch.Round, error) {
	text, err := r.textFor(key)
	if err != nil {
		return nil, err
	}
	return r.Flights.Refreshes.Do(ctx, text, func() *round { return new(keyedRound[K]).set(&r.Keys, key, text) })
}

// newRequest returns a request for keys. It calls failed for keys that have no text.
func (r *Reader[K, V]) newRequest(keys []K, failed func(int, error)) request {
	texts := make([]string, 0, len(keys))
	var places []int // see request
	for i, key := range keys {
		text, err := r.textFor(key)
		if err != nil {
			failed(i, err)
			if places == nil { // from here on the indexes differ
				places = firstIndexes(i, len(keys))
			}
			continue
		}
		texts = append(texts, text)
		if places != nil {
			places = append(places, i)
		}
	}
	var rounds roundMaker[K]
	return request{texts: texts, places: places, create: func(i int) *round {
		key := keys[placeOf(places, i)]
		return rounds.next(len(texts)-i).set(&r.Keys, key, texts[i])
	}}
}

// firstIndexes returns the numbers from 0 to n-1, in a slice with this capacity.
func firstIndexes(n, capacity int) []int {
	indexes := make([]int, n, capacity)
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

// roundsAtOnce is the number of rounds that a roundMaker allocates together. 15 rounds nearly fill
// a size class of the allocator; with 16, each would take 60 bytes more.
const roundsAtOnce = 15

// A roundMaker allocates rounds, several at a time.
type roundMaker[K comparable] struct{ unused []keyedRound[K] }

// next returns a new round. wanted is the number of rounds that are still to come, with this one.
func (r *roundMaker[K]) next(wanted int) *keyedRound[K] {
	if len(r.unused) == 0 {
		r.unused = make([]keyedRound[K], min(wanted, roundsAtOnce))
	}
	next := &r.unused[0]
	r.unused = r.unused[1:]
	return next
}

// GetMany is Get for many keys. It calls got with the index of each key that was read, and failed
// with the index of each other key.
func (r *Reader[K, V]) GetMany(
	ctx context.Context, mode fetch.Mode, keys []K, got func(int, *fetch.Round), failed func(int, error),
) {
	r.getMany(ctx, mode, r.newRequest(keys, failed), got, failed)
}

// RefreshMany is Refresh for many keys.
func (r *Reader[K, V]) RefreshMany(
	ctx context.Context, keys []K, got func(int, *fetch.Round), failed func(int, error),
) {
	r.newRequest(keys, failed).read(ctx, r.Flights.Refreshes, got, failed)
}

// Warm loads the rows of keys that have no entry in Redis, or whose entry has less than half of
// its TTL left. It calls failed with the index of each key that could not be cached, and returns
// the number of rows that it has loaded, or tried to load. It does not ask the filter, because the
// rows are known to exist.
func (r *Reader[K, V]) Warm(ctx context.Context, keys []K, failed func(int, error)) (loads int) {
	return r.warm(ctx, r.newRequest(keys, failed), failed)
}

// Lone returns a round of key that has no other caller.
func (r *Reader[K, V]) Lone(key K) (*fetch.Round, error) {
	text, err := r.Keys.Text(key)
	if err != nil {
		return nil, err
	}
	return &new(keyedRound[K]).set(&r.Keys, key, text).Result, nil
}

// Peek returns the copy of a key in memory or Redis: see Loader.Peek. If err is not nil, ok is
// false.
func (r *Reader[K, V]) Peek(ctx context.Context, key K) (row *fetch.Round, ok bool, err error) {
	if row, err = r.Lone(key); err != nil {
		if r.Closed() {
			err = fault.Closed
		}
		return nil, false, err
	}
	ok, err = r.peek(ctx, row)
	return row, ok, err
}

// Value returns the value of package fetch as a V. Package fetch passes a *V, which avoids an
// allocation. If value is nil, Value returns the zero V.
func Value[V any](value any) (v V) {
	if value != nil {
		v = *value.(*V)
	}
	return v
}

// Encode encodes a value for Redis.
func (r *Reader[K, V]) Encode(value any) (codec.Payload, error) {
	return r.options.Codec.Encode(Value[V](value))
}

// Decode decodes a value from Redis. If the loader uses the memory tier, the value is part of an
// item, so that New need not copy it.
func (r *Reader[K, V]) Decode(p codec.Payload) (value any, item *memory.Header, err error) {
	var to *V
	if r.HasMemory() {
		decoded := new(memory.Item[K, V])
		to, item = &decoded.Value, decoded.Whole()
	} else {
		to = new(V)
	}
	if _, err = r.options.Codec.DecodeTo(to, p); err == nil {
		return to, item, nil
	}
	if recovered, ok := r.cache.Panicked(err); ok {
		err = fmt.Errorf("decoding panicked with a %T", recovered)
	}
	return nil, nil, err
}

func (r *Reader[K, V]) hash(key any, text string) uint64 { return r.Keys.hashOf(*key.(*K), text) }

// Text returns the text of a key of Core.
func (r *Reader[K, V]) Text(key any) (string, error) {
	typed, ok := key.(*K)
	if !ok {
		return "", errOtherType
	}
	return r.Keys.Text(*typed)
}

var errOtherType = errors.New("a key of another type")

func (r *Reader[K, V]) parse(text string) (key any, ok bool) {
	if r.Keys.Parse == nil {
		return nil, false
	}
	parsed, ok := r.Keys.Parse(text)
	return &parsed, ok
}
