package cacheaside

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
)

// Filter tells which keys certainly have no row, before Redis or the database is asked for them
// (LoaderOptions.Filter). The filters of package bloom are Filters. Keys are the loader's key
// texts: a string as it is, an integer in decimal, what MarshalText or LoaderOptions.Key gives. All
// methods are called by many goroutines at once, and should return when ctx ends: reads that share
// a hanging call leave by their own contexts, but Close waits for the call. A panic in a method
// does no more harm than an error.
//
// A Filter may have four methods more:
//
//	MightContainNow(key string) (may, known bool)
//	MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
//	CheckRebuilt(check func(
//		ctx context.Context, listed []string, before time.Time,
//		holds func(ctx context.Context, keys []string) ([]bool, error),
//	) (hidden int, err error)) (remove func())
//	Hidden(ctx context.Context, key string) error
//
// MightContainNow answers at once, on the goroutine of the caller of Get, or says that it does not
// know. Then, and where there is no such method, MightContain is asked, on a goroutine of its own,
// which makes a refusal some microseconds slower. MightContainNow is for filters in the memory of
// the process.
//
// MightContainFresh is asked for reads with the option Fresh. It is for filters that may learn of
// other processes' keys a little later. MightContainFresh must know each key whose committed (see
// Admit) has returned nil, in any process.
//
// CheckRebuilt is for filters that are rebuilt while they serve. The loader gives it a check, until
// Close. The filter calls check with what it has built, before it answers by that: check asks holds
// for up to 1,000 keys whose rows this loader's loads have returned within the last hour, and loads
// those that the filter lacks. Rows that were read at or after the time before do not count, unless
// it is zero. check returns how many of these rows exist: the filter must not hide them. An error
// with 0 says that check could not find out. listed are some keys that the source of the filter has
// yielded, or none. If they have rows, keys that may be other spellings of listed ones do not
// count: a database may find one row under several texts, and anyone can ask for these.
//
// Hidden reports a key that the filter has refused although its row exists (see
// LoaderOptions.AuditEvery). The first time, the filter should say true for all keys until it has
// been rebuilt, in all processes if it is shared. If a rebuilt filter still refuses a reported key,
// its source does not list the key: the filter may go on refusing it. Hidden is called again if it
// returns an error. This loader no longer uses a filter without the method until the filter says
// true for that key.
type Filter interface {
	// MightContain tells whether there may be a row of key: false only if there is certainly none.
	// It need not say true where it returns an error.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany answers for each of keys, in their order. It must not keep or change keys.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany makes the filter say true for keys from now on. The loader does not call AddMany; it
	// is for code that fills the filter.
	AddMany(ctx context.Context, keys []string) error

	// Admit adds the keys of rows before the transaction that inserts them commits. committed,
	// called after the commit, ends what could hide the keys even so. Once committed has returned
	// nil, the filter must say true for them, for ever. committed may be called again. A nil
	// committed has nothing to do.
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound tells the filter how many keys for which it has said true have turned out to have no
	// row. NotFound must not block.
	NotFound(keys int)
}

// Codec is how a loader writes values into Redis: LoaderOptions.Codec. JSON and Binary are here,
// MessagePack is package msgpack, and ExampleCodec shows a codec of a user's own. All methods are
// called by many goroutines at once. A panic in a method does no more harm than an error.
//
// An entry has the Number of the codec that wrote it. A loader reads entries of JSON, of Binary,
// those without a codec (strings and []byte), and those of its own Codec. Any other entry is a miss
// (Stats.Undecodable), and the next load replaces it. So while processes with two codecs run side
// by side, as during a deployment, each key costs at most one more load for each time that it is
// written, as long as one of the two is JSON. To change from one codec of another kind to another,
// use JSON in between; or set another LoaderOptions.Version, so that their entries never meet.
//
// A Codec may have one more method, Check(t reflect.Type) error, which tells whether the codec
// carries values of a type there and back. NewLoader calls Check with the type of the loader's
// values, and fails with its error, unless LoaderOptions.AllowLoss is set. A Codec without Check is
// believed. The codecs of this module have Check, for codecs that wrap them: see JSON.
type Codec interface {
	// Number identifies this codec in entries, from 8 to 15; 1 to 7 are this module's. Never change
	// a number, nor use one for two formats: nothing else tells them apart.
	Number() uint8

	// Encode returns the encoding of a value. v is a pointer that is not nil: the value itself
	// where the type of the values is a pointer, else a pointer to the value. (A nil is not
	// encoded: it is written as JSON.) The result is not the encoder's own any more. An encoding
	// that is longer than LoaderOptions.MaxValueBytes is not stored. With an error, the value's
	// callers get an *Error that shows no more of the error than its type.
	Encode(v any) ([]byte, error)

	// Decode decodes b, which has at most MaxValueBytes, into what v points to. v is as in Encode,
	// and what it points to is zero. Decode may keep b, but must not change it. It must bear any
	// bytes at all: anybody who can write to Redis can make Decode read them. With an error the
	// entry is a miss.
	Decode(b []byte, v any) error
}

// The codecs of this package. A loader without a Codec stores strings and []byte as they are, and
// anything else as JSON.
var (
	// JSON is encoding/json. Its Check refuses a type of which it loses a part: a field that is not
	// exported, has the tag json:"-" or shares its name with another one; an interface that has
	// methods; a type with MarshalJSON or MarshalText that nothing reads back; a struct that has
	// these methods from a type that it embeds, as time.Time, and other fields. A channel, a
	// function and a complex number are refused, too. So is a type that holds JSON as it is, as
	// json.RawMessage, for it comes back compacted and escaped. Any other type that encodes and
	// decodes itself is believed.
	//
	// A value that JSON would change is returned and not cached (Stats.NotCarried), unless
	// LoaderOptions.AllowLoss is set: a time whose zone is seconds off a whole minute, a string
	// that is not UTF-8, an empty json.Number. JSON.Encode returns an error for such a value.
	//
	// Other losses that a type does not show are not refused. In an any, numbers come back as
	// float64. NaN and infinities are errors. With omitempty an empty slice or map comes back as
	// nil, and so does a pointer to a nil. A time loses its monotonic clock, and the name of its
	// location. JSON that is nested deeper than 10,000 levels is not read.
	JSON Codec = codec.Builtin(codec.JSON)

	// Binary encodes by encoding.BinaryMarshaler and BinaryUnmarshaler, which the values must
	// implement. A struct that embeds such a type, as time.Time, implements them too, and would
	// lose its other fields: Check refuses it.
	Binary Codec = codec.Builtin(codec.Binary)
)

// Locker is a lock service: LoaderOptions.Locker. A *lock.Locker of package lock is one. Its method
// is called by many goroutines at once.
type Locker interface {
	// Lock waits for the lock of this name until it has the lock, ctx ends, wait has passed, or the
	// service fails. The lock is kept until unlock is called: once, also when ctx has ended. The
	// error of unlock says that the lock is not known to have been kept until then, or to be free
	// now. A panic in Lock or unlock is taken for an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// Hook is a typed function for an option, which has no type parameters. KeyOf, NormalizeOf,
// CloneOf and WeightOf make a Hook. NewLoader checks that its types are the loader's. The zero
// Hook is none.
type Hook struct{ f any }

// KeyOf makes the Hook for LoaderOptions.Key: the text of a key, as by a method,
// KeyOf(pageKey.text). Keys that name different rows must have different texts, of any bytes and
// length.
func KeyOf[K comparable](text func(K) string) Hook { return Hook{text} }

// NormalizeOf makes the Hook for LoaderOptions.Normalize, as by NormalizeOf(strings.ToLower). Many
// goroutines call normalize at once.
func NormalizeOf[K comparable](normalize func(K) K) Hook { return Hook{normalize} }

// CloneOf makes the Hook for LoaderOptions.Clone: a copy of a value that shares nothing with the
// value that a caller could change, as by CloneOf(Page.clone) or CloneOf(slices.Clone[[]int]).
func CloneOf[V any](clone func(V) V) Hook { return Hook{clone} }

// WeightOf makes the Hook for LoaderOptions.Weight: how many bytes of memory a value takes, with
// what it points to. It is called once for each value that is put into memory, by many goroutines
// at once, and must lock what it reads if the value may change. A value whose weight is negative,
// or makes it panic, is not kept in memory, and is counted (Stats.TooHeavy).
func WeightOf[V any](weight func(V) int64) Hook { return Hook{weight} }

// function returns what h holds, nil if nothing, or an error that names the field.
func function[F func(A) B, A, B any](h Hook, field, maker string) (F, error) {
	if h.f == nil {
		return nil, nil
	}
	f, ok := h.f.(func(A) B)
	switch {
	case !ok:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is a %T, and this loader needs a %T", field, maker, h.f, F(nil))
	case f == nil:
		return nil, fmt.Errorf("LoaderOptions.%s: the function given to %s is nil", field, maker)
	}
	return f, nil
}

// Observer is told when operations begin and end, so that they can be timed and traced: see package
// otelcacheaside, which makes OpenTelemetry metrics and spans of an Observer and of Stats. Stats
// counts how often things happen, at no cost to a hit in memory; of such hits an Observer is not
// told at all.
//
// Begin is called when an operation begins, on the goroutine that does it. op is one of the Op
// constants; loader is the name of a Loader of this Cache, or "" for keys of loaders that the Cache
// does not have, and of several; keys is how many keys the operation is about. The operation goes
// on with the context that Begin returns, made from ctx: for OpLoad it is the load function's. end,
// which is never nil, is called once, when the operation is over, with its error: that of the
// caller, nil, or for OpLoad what the load function has returned; ErrNotFound is no failure. end
// may be called on another goroutine, and where a caller has left, after the caller's call has
// returned.
//
// Begin and end must be quick, and must neither block nor panic: a panic of theirs is caught,
// logged and counted (Stats.ObserverPanics), and the operation goes on without them. They are
// called concurrently. Neither is ever given a key or a value. But the texts of load functions'
// errors may have some: an Observer must not show such errors unless they may be seen.
type Observer interface {
	Begin(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error))
}

// The operations that an Observer is told of.
const (
	OpGet        = "get"        // what memory has not answered of a Get or GetMany
	OpLease      = "lease"      // one trip that asks Redis for leases
	OpLoad       = "load"       // a call of the load function, without its wait for a place
	OpWait       = "wait"       // a key's wait for a load of another process
	OpRefresh    = "refresh"    // a Refresh, or a reload in the background, with its load
	OpInvalidate = "invalidate" // an Invalidate, InvalidateKeys, InvalidateAll or Expire: the delete and its announcement
)
