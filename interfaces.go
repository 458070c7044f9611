package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A Filter reports which keys certainly have no row, before Redis and the database are read
// (LoaderOptions.Filter). The filters of package bloom are Filters. Keys are the loader's key
// texts: a string as it is, an integer in decimal, or the result of MarshalText or
// LoaderOptions.Key. All methods must be safe for concurrent use, and should return when ctx
// ends: reads that share a hanging call leave when their own contexts end, but Close waits for
// the call. A panic in a method has the effect of an error.
//
// A loader uses the filters of package bloom in more ways: it asks those in memory without a
// goroutine, reads with Fresh ask Redis, and audits report rows that a filter hides (see
// LoaderOptions.AuditEvery). A loader does not use any other Filter that has hidden a row until
// it returns true for the key.
type Filter interface {
	// MightContain reports whether there may be a row for key. It returns false only if there is
	// certainly none. If it returns an error, the result is ignored.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany returns the result of MightContain for each key, in the order of keys. It
	// must not keep or change keys.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// Inserting adds the keys of rows before the transaction that inserts them commits. The caller
	// calls committed after the commit. It completes the work that could not be done before, for
	// example adding the keys to a filter that is being rebuilt. Once committed has returned nil,
	// the filter must return true for the keys, forever. committed may be called more than once.
	// It is nil if there is nothing to do.
	Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound reports the number of keys that passed the filter and turned out to have no row.
	// It must not block.
	NotFound(keys int)
}

var _ codec.Checker = CodecChecker(nil) // under this name the internal packages look for it

// A Codec encodes values for Redis (LoaderOptions.Codec). JSON and Binary are in this package,
// MessagePack is in package msgpack, and ExampleCodec shows a custom one. All methods must be
// safe for concurrent use. A panic in a method has the effect of an error.
//
// Each entry contains the Number of its codec. A loader reads entries of JSON, of Binary, of its
// own Codec, and those without a codec (strings and []byte). Any other entry is a miss
// (Stats.Undecodable), and the next load replaces it. So processes with two codecs can run at the
// same time, for example during a deployment, if one of the two is JSON: each write of a key then
// costs at most one additional load. To change between two other codecs, change to JSON first; or
// set another LoaderOptions.Version, so that their entries have different keys.
//
// A Codec that also implements CodecChecker refuses types. The codecs of this module do, and other
// codecs can call their Check: see JSON.
type Codec interface {
	// Number identifies this codec in entries. Use 8 to 15; 1 to 7 belong to this module. Never
	// change a number or use it for two formats, because nothing else distinguishes them.
	Number() uint8

	// Encode returns the encoding of a value. v is a pointer that is not nil: the value itself if
	// its type is a pointer, otherwise a pointer to the value. (A nil value is not passed to
	// Encode, but stored as JSON.) The caller owns the result. An encoding longer than
	// LoaderOptions.MaxValueBytes is not stored. If Encode returns an error, the callers of the
	// value get an *Error that contains only the type of that error.
	Encode(v any) ([]byte, error)

	// Decode decodes b, which has at most MaxValueBytes, into the value that v points to. v is as
	// in Encode, and points to a zero value. Decode may keep b, but must not change it. It must
	// handle arbitrary bytes, because any client that can write to Redis controls them. An entry
	// for which Decode returns an error is a miss.
	Decode(b []byte, v any) error
}

// A CodecChecker is a Codec that knows which types it preserves. If a Codec is no CodecChecker,
// types are not checked.
type CodecChecker interface {
	// Check returns an error if the codec does not preserve values of type t. NewLoader calls it
	// with the type of the loader's values, and returns its error, unless LoaderOptions.AllowLoss
	// is set.
	Check(t reflect.Type) error
}

// A BuiltinCodec is a codec of this package: JSON or Binary.
type BuiltinCodec = codec.Builtin

// The codecs of this package. A loader without a Codec stores strings and []byte as they are, and
// anything else as JSON.
const (
	// JSON is encoding/json. Its Check returns an error for a type of which JSON loses a part:
	//
	//   - a field that is not exported, has the tag json:"-" or shares its name with another one;
	//   - an interface that has methods;
	//   - a type with MarshalJSON or MarshalText, but without the method that reads the result;
	//   - a struct that gets these methods from an embedded type, such as time.Time, and has
	//     other fields;
	//   - a channel, a function or a complex number;
	//   - a type that contains raw JSON, such as json.RawMessage, because it comes back compacted
	//     and escaped.
	//
	// Any other type with its own encoding and decoding methods is accepted without a check.
	//
	// A value that JSON would change is returned and not cached (Stats.NotCarried), unless
	// LoaderOptions.AllowLoss is set. Such values are a time whose zone offset is not a whole
	// number of minutes, a string that is not UTF-8, and an empty json.Number. JSON.Encode
	// returns an error for such a value.
	//
	// Check does not detect losses that a type does not show. In an any, numbers come back as
	// float64. NaN and infinities cannot be encoded. With omitempty, an empty slice or map comes
	// back as nil, and so does a pointer to a nil. A time loses its monotonic clock and the name
	// of its location. JSON that is nested deeper than 10,000 levels cannot be decoded.
	JSON = BuiltinCodec(codec.JSON)

	// Binary uses encoding.BinaryMarshaler and BinaryUnmarshaler, which the values must
	// implement. A struct that embeds such a type, for example time.Time, implements them too,
	// but loses its other fields: Check returns an error for it.
	Binary = BuiltinCodec(codec.Binary)
)

// A Locker is a lock service (LoaderOptions.Locker). A *lock.Locker of package lock is one. Its
// method must be safe for concurrent use.
type Locker interface {
	// Lock acquires the lock with this name. It waits until the lock is free, ctx ends, wait has
	// passed, or the service fails. The lock is held until unlock is called. The loader calls
	// unlock once, even after ctx has ended. unlock returns an error if the lock may have been
	// lost before, or may not be released. A panic in Lock or unlock has the effect of an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// A Hook is a typed function for a field of LoaderOptions, which has no type parameters. KeyOf,
// NormalizeOf, CloneOf, WeightOf and GroupsOf return one. NewLoader checks that its types are
// those of the loader. The zero Hook contains no function.
type Hook struct{ f any }

// KeyOf returns the Hook for LoaderOptions.Key. text returns the text of a key, for example
// KeyOf(pageKey.text). Keys that name different rows must have different texts. A text may
// contain any bytes and have any length.
func KeyOf[K comparable](text func(K) string) Hook { return Hook{text} }

// NormalizeOf returns the Hook for LoaderOptions.Normalize, for example
// NormalizeOf(strings.ToLower). normalize must be safe for concurrent use.
func NormalizeOf[K comparable](normalize func(K) K) Hook { return Hook{normalize} }

// CloneOf returns the Hook for LoaderOptions.Clone, for example CloneOf(Page.clone) or
// CloneOf(slices.Clone[[]int]). clone returns a copy that shares no mutable data with the value.
// It must be safe for concurrent use.
func CloneOf[V any](clone func(V) V) Hook { return Hook{clone} }

// WeightOf returns the Hook for LoaderOptions.Weight. weight returns how many bytes of memory a
// value takes, including everything it points to. It is called once for each value that is put
// into memory. It must be safe for concurrent use, and must lock data that may change. A value
// whose weight is negative, or for which weight panics, is not kept in memory (Stats.TooHeavy).
func WeightOf[V any](weight func(V) int64) Hook { return Hook{weight} }

// GroupsOf returns the Hook for LoaderOptions.Groups. names returns the names of the groups that
// the value of a key belongs to. They may follow from the key or from the value. If there is no
// row, of is called with the zero V (nil for a pointer), because an absence belongs to groups, too.
// Empty names are ignored. A value with more than 64 groups belongs to all groups of the loader:
// any InvalidateGroup outdates it.
//
// If a change of the function changes the groups of stored values, also change
// LoaderOptions.Version. names is called once for each loaded value. It must be safe for concurrent
// use, and must not change the value. A panic in names is an error of the load.
//
// If another program shares the loader and has no Groups, that program learns of the groups from
// Redis within Options.MaxStaleness, and logs a warning. Its values then belong to all groups. A
// program of a release before groups does not learn of them: update all programs first.
func GroupsOf[K comparable, V any](names func(K, V) []string) Hook { return Hook{names} }

// A GroupKind is a kind of groups, such as the lists of a category. Each of its groups has a value,
// such as the category. Declare it once, pass it to LoaderOptions.GroupKinds, and use it wherever a
// group is named: by the function of LoaderOptions.Groups, by InvalidateGroup, by GroupKey, and by
// canal.TextOf for a canal.BindGroup.
//
//	var byCategory = cacheaside.GroupKind{Name: "category"}
//
//	err := lists.InvalidateGroup(ctx, byCategory.Of("books"))
//
// So a misspelt kind does not compile, or is an error.
type GroupKind struct {
	// Name is the name of the kind. It consists of letters, digits, "_", "." and "-".
	Name string

	// Normalize returns the spelling that stands for all spellings of a value, for example
	// strings.ToLower for a case-insensitive column. Without it, an invalidation of the group of
	// "books" does not reach the lists of "Books", although the database takes both for the same
	// category. It must be safe for concurrent use. Normalizing a result again must not change it.
	// A panic is an error of the load or of the invalidation. Default: values are used as they are.
	Normalize func(value string) string
}

// Of returns the name of the group of a value: the name of the kind, a colon, and the normalized
// value, for example "category:books".
func (g GroupKind) Of(value string) string {
	if g.Normalize != nil {
		value = g.Normalize(value)
	}
	return g.Name + ":" + value
}

// checkGroupKinds checks LoaderOptions.GroupKinds.
func checkGroupKinds(kinds []GroupKind, groups Hook) error {
	if len(kinds) > 0 && groups.f == nil {
		return errors.New("LoaderOptions.GroupKinds without Groups: values have no groups")
	}
	seen := make(map[string]bool, len(kinds))
	for i, k := range kinds {
		switch {
		case !keys.ValidName(k.Name):
			return fmt.Errorf("LoaderOptions.GroupKinds[%d].Name %q: only letters, digits, '_', '.' and '-'", i, k.Name)
		case seen[k.Name]:
			return fmt.Errorf("LoaderOptions.GroupKinds[%d].Name %q: another kind has this name", i, k.Name)
		}
		seen[k.Name] = true
	}
	return nil
}

// groupsFunction returns the function of LoaderOptions.Groups, or nil if there is none.
func groupsFunction[K comparable, V any](h Hook) (func(K, V) []string, error) {
	if h.f == nil {
		return nil, nil
	}
	names, ok := h.f.(func(K, V) []string)
	switch {
	case !ok:
		return nil, fmt.Errorf("LoaderOptions.Groups: the function given to GroupsOf is a %T, and this loader needs "+
			"a %T", h.f, names)
	case names == nil:
		return nil, errors.New("LoaderOptions.Groups: the function given to GroupsOf is nil")
	}
	return names, nil
}

// function returns the function in h, or nil if there is none. Its error names the field.
func function[F func(A) B, A, B any](h Hook, field, maker string) (F, error) {
	if h.f == nil {
		return nil, nil
	}
	f, ok := h.f.(func(A) B)
	switch {
	case !ok:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is a %T, and this loader needs a %T", field,
			maker, h.f, F(nil))
	case f == nil:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is nil", field, maker)
	}
	return f, nil
}

// An Observer is called when operations begin and end, so that they can be timed and traced.
// Package otelcacheaside has an Observer that provides OpenTelemetry metrics and spans. Hits in
// memory are not observed; Stats counts them.
//
// Begin is called when an operation begins, on the goroutine that executes it. op is one of the
// Op constants. loader is the name of a Loader of this Cache, or "" for keys of several loaders,
// or of loaders that the Cache does not have. keys is the number of keys. Begin returns a context
// that is derived from ctx, which the operation uses: for OpLoad it is the context of the load
// function. Begin also returns end, which must not be nil. end is called once, when the operation
// has ended, with its error: the error that the caller gets, or for OpLoad the error of the load
// function. ErrNotFound is not a failure. end may be called on another goroutine. If a caller
// leaves early, end may be called after the caller's call has returned.
//
// Begin and end are called concurrently. They must be quick, and must not block or panic. A panic
// is recovered, logged and counted (Stats.ObserverPanics), and the operation continues
// unobserved. They never get a key or a value. But the errors of load functions may contain some
// in their texts: an Observer must not publish such errors unless keys and values are public.
type Observer interface {
	Begin(ctx context.Context, op, loader string, keys int) (observed context.Context, end func(error))
}

// The operations that an Observer receives.
const (
	OpGet     = "get"     // the part of a Get or GetMany that memory cannot serve
	OpLease   = "lease"   // a round trip that requests leases from Redis
	OpLoad    = "load"    // a call of the load function, without its time in the queue
	OpWait    = "wait"    // the wait of a key for a load of another process
	OpRefresh = "refresh" // a Refresh, or a background reload, including its load
	// an Invalidate, InvalidateKeys, InvalidateAll or Expire: the delete and its announcement
	OpInvalidate = "invalidate"
)
