// Package fetch reads keys that the memory of the process does not serve, from the first lookup in
// Redis to the result: entries, leases, loads, waits for the loads of other processes, background
// refreshes. It reads many keys together: each step is one trip to Redis for all keys that are at
// this step.
//
// A read of a key that no tier has takes these steps:
//
//  1. Take a snapshot: the loader's generation, and the key's version in memory. If the
//     generation is not confirmed, poll Redis for it first (begin.go, batch.go).
//  2. Look up the key in Redis (lookup.go). The function decide determines the next step.
//  3. Request the key's lease (lookup.go). If another read has it, wait and look up the key again
//     (wait.go).
//  4. Load the row under the lease (load.go).
//  5. Replace the lease by the value (store.go). If an invalidation has removed the lease since,
//     Redis refuses the store: no caller gets the value, and the read returns to step 1.
//  6. Put the value in memory under the snapshot of step 1 (memory.go). If an invalidation has
//     raised the version since, no hit in memory returns that value.
//
// docs/design.md describes the steps in more detail.
//
// A Round is one read of a key, for all callers that asked before it started.
//
// The package does not know the types of a loader. It identifies keys by their texts, and values
// are any.
package fetch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// SlowTrip is the time of a round trip to Redis from which a lookup may also request the lease. A
// trip within a machine or a rack is faster. It is a variable only for tests.
var SlowTrip = 500 * time.Microsecond

// Shared has the parts of a cache that all its loaders share.
type Shared struct {
	Store *lease.Store // nil if there is no Redis
	Conn  *conn.Conn
	Bus   *invalidation.Bus
	Holds *memory.Holds // nil if Redis stores the holds, or there are none

	GroupHolds *memory.Holds // of invalidated groups, for ReplicaLag; nil if that is 0

	LeaseTTL, QueueTimeout, ReadTimeout, MaxStaleness, ReplicaLag time.Duration

	// SlowTrip is the time of a trip to Redis from which lookups may also request leases (see
	// leaseFirst). A Cache sets the variable SlowTrip. 0: never; negative: always, for tests.
	SlowTrip time.Duration

	MayHold bool // whether keys may be on hold

	Observe  func(ctx context.Context, op, loader string, keys int) (observed context.Context, end func(error))
	Observed bool // whether there is an Observer
	Warn     func(message, loader string, err error)
	Caught   func(recovered any) error
}

// Guard calls f, which runs a user's code, and converts a panic to an error.
func (s *Shared) Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.Caught(p)
		}
	}()
	return f()
}

// The operations that are passed to Shared.Observe.
const (
	OpLease   = "lease"
	OpLoad    = "load"
	OpWait    = "wait"
	OpRefresh = "refresh"
)

// Options are the options of cacheaside.LoaderOptions with these names, and the other parts of a
// loader.
type Options struct {
	TTL, NullTTL, StaleFor, SoftTimeout, MemoryTTL, LoadTimeout, ErrorTTL, AuditEvery time.Duration

	EarlyRefresh, Jitter float64
	MaxValueBytes        int
	RedisDown            DownPolicy
	Locker               Locker
	MustLock             bool

	Name        string
	Chunk       int // maximum number of keys in a call of the load function
	Calls       int // maximum number of concurrent calls of the load function by one flight
	Keys        keys.Namespace
	Memory      *memory.Tier        // nil if the loader does not use it
	Generations *memory.Generations // the loader's generations, one for each range of slots
	Groups      *groups.Loader      // what this process knows of the loader's groups
	GroupsOf    GroupsOf            // nil: the values have none, except in other processes
	Source      *source.Source
	Items       Items
	Codec       Codec
	Filter      Filter // nil if there is none
	Counters    *Counters
	// returns an exponentially distributed random number, for early refreshes; default
	// rand.ExpFloat64
	ExpRand  func() float64
	Life     context.Context                    // ends when the cache is closed
	Bypassed func() bool                        // reports whether the caches are off
	Query    func(rounds []*Round) source.Query // returns the call of the load function for the keys of rounds
}

// DownPolicy is cacheaside.DownPolicy.
type DownPolicy uint8

// The policies of cacheaside.
const (
	LoadWhenDown DownPolicy = iota
	StaleWhenDown
	FailWhenDown
)

// Codec is a loader's codec. Values are pointers to values of the loader's type.
type Codec interface {
	Encode(value any) (codec.Payload, error)

	// Decode returns a value, and the item that contains it; nil if there is no such item.
	Decode(p codec.Payload) (value any, item *memory.Header, err error)
}

// Locker is a lock service: LoaderOptions.Locker. A *lock.Locker of package lock is one. Lock is
// called concurrently.
type Locker interface {
	// Lock waits until it has acquired the lock with this name, ctx ends, wait has passed, or the
	// service fails. The lock is held until unlock is called. unlock is called once, even if ctx
	// has ended. An error of unlock means that the lock may have been lost before, or may still
	// be held. A panic in either function counts as an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// Filter is the part of cacheaside.Filter that reads need.
type Filter interface {
	MightContain(ctx context.Context, key string) (bool, error)
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)
	NotFound(keys int)
}

// The following interfaces are the handshake with the filters of package bloom. A filter implements
// those of them that apply.

// A FilterNow is a Filter in the memory of the process.
type FilterNow interface {
	// MightContainNow is MightContain without I/O. It is called on the goroutine of the caller of
	// Get. If known is false, may is ignored, and the loader calls MightContain on a separate
	// goroutine, as for a Filter without this method. That makes a refusal some microseconds
	// slower.
	MightContainNow(key string) (may, known bool)
}

// A FilterFresh is a Filter that learns the keys of other processes with a delay.
type FilterFresh interface {
	// MightContainFresh is MightContainMany for reads with the option Fresh. It knows each key
	// whose committed function (see cacheaside.Filter.Inserting) has returned nil, in any process.
	MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
}

// A FilterOwned is a Filter that another application can share by mistake, because both have given
// it the same name in Redis.
type FilterOwned interface {
	// SetOwner is called by NewLoader with Options.Prefix of the Cache. It does no I/O. If the
	// filter turns out to belong to a Cache with another prefix, its lookups return true. If
	// SetOwner returns an error, NewLoader fails with it.
	SetOwner(prefix string) error
}

// A FilterHidden is a Filter that handles reports of rows that it hides.
type FilterHidden interface {
	// Hidden reports a key that the filter has refused although its row exists. The filter returns
	// true for all keys until it has been rebuilt, in all processes if it is shared. The loader
	// calls Hidden again while the filter refuses the key.
	Hidden(ctx context.Context, key string) error
}

// Items gives the memory tier access to a loader's types. Keys and values are pointers.
type Items interface {
	// New returns an item of a round's key and value, and its weight. unused is nil, or the item
	// that Codec.Decode has returned, if it has not been put into memory.
	New(key, value any, unused *memory.Header, null bool, encoded int) (item *memory.Header, weight int64)

	// Pair returns the key and the value of an item, or nil if their types are not those of the
	// loader. An item with these types may still belong to another loader.
	Pair(item *memory.Header) (key, value any)

	// Text returns the text of a key.
	Text(key any) (string, error)
}

// GroupsOf returns the stable hashes of the groups of a value, or of the absence of a row. key and
// value are pointers.
type GroupsOf func(key, value any, null bool) ([]uint64, error)

// A Flight is a group of rounds that run together.
type Flight interface {
	Complete(rounds []*Round)
	TakeIn(r *Round)
}

// A Fetcher reads the keys of a loader.
type Fetcher struct {
	Options

	cache  *Shared
	filter filter
	sizes  lease.Sizes // of the loader's entries in Redis
	misses missShare   // of the loader's lookups in Redis
	start  time.Time   // the zero of the loader's monotonic clock

	refreshes  refreshes
	background sync.WaitGroup // background refreshes, renewals of leases, releases
}

// New returns a Fetcher.
func New(shared *Shared, o Options) *Fetcher {
	f := &Fetcher{cache: shared, Options: o, start: time.Now()}
	if f.Groups == nil {
		f.Groups = groups.New(groups.Options{})
	}
	if f.ExpRand == nil {
		f.ExpRand = rand.ExpFloat64
	}
	f.filter.set(o.Filter)
	return f
}

// A filter is a loader's filter, and whether the loader trusts it. A filter with a nil Filter
// refuses no key.
//
// A filter that was built from the wrong table, or that has lost keys, refuses keys whose rows
// exist, and no other check would reveal that. So at most once per AuditEvery a refusal is not
// returned immediately: the database is asked for the row.
type filter struct {
	Filter
	// MightContainNow, which does not block; or nil
	mayContainNow func(key string) (may, known bool)
	// MightContainFresh, for reads that are Fresh; or nil
	mayContainFresh func(ctx context.Context, keys []string) ([]bool, error)

	nextAudit atomic.Int64 // when the next refusal is audited, on the loader's clock
	suspect   atomic.Bool  // the filter has refused a row that exists, and is ignored
}

func (f *filter) set(user Filter) {
	f.Filter = user
	if now, ok := user.(FilterNow); ok {
		f.mayContainNow = now.MightContainNow
	}
	if fresh, ok := user.(FilterFresh); ok {
		f.mayContainFresh = fresh.MightContainFresh
	}
}

// Stop prevents new background refreshes.
func (f *Fetcher) Stop() { f.refreshes.close() }

// Wait waits for the background work. Call it after Stop, when the flights have ended.
func (f *Fetcher) Wait() {
	f.refreshes.running.Wait()
	f.background.Wait()
}

// Counters are the counters of a Fetcher and its loader: see the fields of cacheaside.Stats with
// these names.
type Counters struct {
	MemoryHits                          memory.Hits
	MemoryNulls, HitsWhileDown          atomic.Int64
	Misses                              atomic.Int64 // Gets that memory did not serve
	RedisHits, NullHits                 atomic.Int64
	CompareLoads                        atomic.Int64
	TooLarge, NotCarried, StoredHeld    atomic.Int64
	TooHeavy, ManyGroups                atomic.Int64
	FailedByMark, Waits, Refused        atomic.Int64
	Unvalidated, Bypassed               atomic.Int64
	Undecodable, RedisErrors, Abandoned atomic.Int64
	Outdated                            atomic.Int64
	BackgroundRefreshes, Early, Stale   atomic.Int64
	Unlocked                            atomic.Int64
	Held, WriteErrors, RedisDown        atomic.Int64
	Invalidated, InvalidateErrors       atomic.Int64
	Filtered, FalsePositives            atomic.Int64
	FilterErrors                        atomic.Int64
	FilterAudits, FilterHidden          atomic.Int64
}

// count counts an error of Redis that no caller receives.
func (f *Fetcher) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Counters.RedisErrors.Add(1)
	}
}

// CountWrite counts an error of a store, a renewal or a release.
func (f *Fetcher) CountWrite(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Counters.RedisErrors.Add(1)
		f.Counters.WriteErrors.Add(1)
	}
}

func (f *Fetcher) countWrites(attempts []*lease.Attempt) {
	for _, a := range attempts {
		f.CountWrite(a.Err)
	}
}

func (f *Fetcher) observe(ctx context.Context, op string, keys int) (observed context.Context, end func(error)) {
	return f.cache.Observe(ctx, op, f.Name, keys)
}
