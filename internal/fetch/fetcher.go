// Package fetch reads a key that the memory of the process does not answer, from its first look at
// Redis to its end: what Redis holds, leases, loads, waits for the loads of others, background
// refreshes. It does so for many keys at once: each step is one trip to Redis for all that are at
// it.
//
// It knows no types of a loader: keys are known by their texts, and values are any.
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
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Shared is what the loaders of a cache share.
type Shared struct {
	Store *lease.Store // nil: there is no Redis
	Conn  *conn.Conn
	Bus   *invalidation.Bus
	Holds *memory.Holds // nil: Redis has them, or there are none

	LeaseTTL, QueueTimeout, ReadTimeout, MaxStaleness, ReplicaLag time.Duration

	MayHold bool // keys may be on hold

	Observe  func(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error))
	Observed bool // somebody observes
	Warn     func(what, loader string, err error)
	Caught   func(recovered any) error
}

// Guard calls f, which runs code of a user, and makes an error of a panic.
func (s *Shared) Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.Caught(p)
		}
	}()
	return f()
}

// Ops are the names by which Shared.Observe is told what is done.
const (
	OpLease   = "lease"
	OpLoad    = "load"
	OpWait    = "wait"
	OpRefresh = "refresh"
)

// Options are those of cacheaside.LoaderOptions of these names, and what a loader has besides.
type Options struct {
	TTL, NullTTL, StaleFor, SoftTimeout, MemoryTTL, LoadTimeout, ErrorTTL, AuditEvery time.Duration

	EarlyRefresh, Jitter float64
	MaxValueBytes        int
	RedisDown            DownPolicy
	Locker               Locker
	MustLock             bool

	Name        string
	Chunk       int // how many keys a call of the load function may have
	Calls       int // of the load function, by one flight at once
	Keys        keys.Namespace
	Memory      *memory.Tier        // nil: not used by this loader
	Generations *memory.Generations // what the loader holds is of these, in each range of keys
	Source      *source.Source
	Items       Items
	Codec       Codec
	Filter      Filter // nil: none
	Counters    *Counters
	Die         func() float64                     // thrown for early refreshes; nil: rand.ExpFloat64
	Life        context.Context                    // ends with the cache
	Bypassed    func() bool                        // whether the caches are off
	Query       func(rounds []*Round) source.Query // calls the load function for their keys
	Loaded      func(rounds []*Round, rows []source.Row)
}

// DownPolicy is cacheaside.DownPolicy.
type DownPolicy uint8

// The policies, as there.
const (
	LoadWhenDown DownPolicy = iota
	StaleWhenDown
	FailWhenDown
)

// Codec is a loader's codec. Values are pointers to ones of the loader's type.
type Codec interface {
	Encode(value any) (codec.Payload, error)
	Decode(p codec.Payload) (value any, err error)
}

// Locker is a lock service: LoaderOptions.Locker. A *lock.Locker of package lock is one. Its method
// is called by many goroutines at once.
type Locker interface {
	// Lock waits for the lock of this name until it has it, ctx ends, wait has passed, or the
	// service fails. It keeps the lock until unlock is called, which is called once, also when ctx
	// has ended. The error of unlock says that the lock is not known to have been kept until then,
	// or to be free now. A panic in either is taken for an error.
	Lock(ctx context.Context, name string, wait time.Duration) (unlock func() error, err error)
}

// Filter is cacheaside.Filter, as far as reads need it.
type Filter interface {
	MightContain(ctx context.Context, key string) (bool, error)
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)
	NotFound(keys int)
}

// Items is what the memory tier needs of a loader's types. Keys and values are pointers.
type Items interface {
	// New makes an item of a round's key and value, and returns its weight.
	New(key, value any, null bool, encoded int) (item *memory.Header, weight int64)

	// Pair returns the key and the value of an item; nil if it is another loader's.
	Pair(item *memory.Header) (key, value any)

	// Text returns the text of a key.
	Text(key any) (string, error)
}

// Flight is the rounds that are under way together.
type Flight interface {
	Complete(rounds []*Round)
	TakeIn(r *Round)
}

// Fetcher reads the keys of a loader.
type Fetcher struct {
	Options

	cache  *Shared
	filter filter
	sizes  lease.Sizes // of its entries in Redis
	start  time.Time   // of the loader's monotonic clock

	refreshes  refreshes
	background sync.WaitGroup // what nobody waits for: reloads, renewals of leases, releases
}

// New makes a Fetcher.
func New(shared *Shared, o Options) *Fetcher {
	f := &Fetcher{cache: shared, Options: o, start: time.Now()}
	if f.Die == nil {
		f.Die = rand.ExpFloat64
	}
	f.filter.set(o.Filter)
	return f
}

// filter is a loader's filter, and whether it is believed. One of a nil Filter refuses nothing.
//
// A filter that was built from the wrong table, or that has lost keys, refuses rows that exist, and
// nothing else would ever tell: so one refusal in a while is not given out at once, but the
// database is asked for the row.
type filter struct {
	Filter
	mayContainNow   func(key string) (may, known bool)                       // what it has for callers' own goroutines, or nil
	mayContainFresh func(ctx context.Context, keys []string) ([]bool, error) // what it has for Fresh, or nil

	nextAudit atomic.Int64 // when a refusal is due to be checked, on the loader's clock
	suspect   atomic.Bool  // the filter has refused a row that exists, and is not asked
	reporting atomic.Bool  // a refused row is being reported
	upheld    atomic.Bool  // the filter has not changed after such a report: it is asked while the next is made
}

func (f *filter) set(user Filter) {
	f.Filter = user
	if nowFilter, ok := user.(interface {
		MightContainNow(key string) (may, known bool)
	}); ok {
		f.mayContainNow = nowFilter.MightContainNow
	}
	if freshFilter, ok := user.(interface {
		MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
	}); ok {
		f.mayContainFresh = freshFilter.MightContainFresh
	}
}

// Stop begins no background refresh any more.
func (f *Fetcher) Stop() { f.refreshes.close() }

// Wait waits for what goes on in the background. Call it after Stop, when the flights have ended.
func (f *Fetcher) Wait() {
	f.refreshes.running.Wait()
	f.background.Wait()
}

// Counters are what a Fetcher, and the loader around it, count: see the fields of cacheaside.Stats
// of these names.
type Counters struct {
	MemoryHits                          memory.Hits
	MemoryNulls, HitsWhileDown          atomic.Int64
	Misses                              atomic.Int64 // Gets that memory did not answer
	RedisHits, NullHits                 atomic.Int64
	CompareLoads                        atomic.Int64
	TooLarge, NotCarried, StoredHeld    atomic.Int64
	TooHeavy                            atomic.Int64
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

// count makes an error of Redis seen that no caller is told of.
func (f *Fetcher) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Counters.RedisErrors.Add(1)
	}
}

// CountWrite does so for what was to be stored, renewed or given up.
func (f *Fetcher) CountWrite(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Counters.RedisErrors.Add(1)
		f.Counters.WriteErrors.Add(1)
	}
}

func (f *Fetcher) countWrites(as []*lease.Attempt) {
	for _, a := range as {
		f.CountWrite(a.Err)
	}
}

func (f *Fetcher) observe(ctx context.Context, op string, keys int) (own context.Context, end func(error)) {
	return f.cache.Observe(ctx, op, f.Name, keys)
}
