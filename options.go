package cacheaside

import (
	"log/slog"
	"math"
	"time"
)

// Options are the settings of a Cache. The zero value of a field means its default, and nil
// Options mean all defaults. docs/option-notes.md has more details.
type Options struct {
	// Prefix is the beginning of every key of the Cache in Redis. Processes that share entries
	// use the same Prefix. It consists of letters, digits, "_", "." and "-". Default:
	// "cacheaside".
	Prefix string

	// MemoryBytes is the maximum heap of the memory tier of this process, for all loaders, in
	// bytes. A value that takes more than a quarter of it is not kept in memory. To weigh a
	// value, the library reads only its plain data: see LoaderOptions.Weight. Default: 64 MiB.
	// From 64 KiB to 1 TiB, and within the address space; negative: no memory tier.
	MemoryBytes int64

	// RedisTimeout is the timeout of each command to Redis, and of the commands for all keys of a
	// batch together. Also set the client's ContextTimeoutEnabled: without it, a command that
	// times out keeps its goroutine and connection. Default: 500 ms. From 1 ms to 1 hour.
	RedisTimeout time.Duration

	// MaxStaleness is the maximum time for which the memory tier of a process serves a value
	// after another process has invalidated it, even if the network fails. Usually it takes
	// milliseconds. The process polls Redis four times in that period. Default: 2 s. From 20 ms
	// to 1 minute.
	MaxStaleness time.Duration

	// ReadTimeout is the timeout of reads of values, from the moment when they are sent to Redis. A
	// read that exceeds it counts as a failure of Redis: see LoaderOptions.RedisDown. A busy
	// process needs time of its own for a read, so lower it only if processors are never short.
	// Default: half of RedisTimeout. From 1 ms to RedisTimeout.
	ReadTimeout time.Duration

	// MaxLoads is the maximum number of concurrent calls of load functions in this process, for all
	// loaders. Set it to the number of queries that the database can serve concurrently, divided by
	// the number of processes. Default: 100. Negative: no limit.
	MaxLoads int

	// MaxQueue is the maximum number of calls that wait because of MaxLoads or LoadRate. If the
	// queue is full, callers immediately get a stale value or ErrUnavailable. Default: ten times
	// MaxLoads (1,000 without a limit). Negative: no queue.
	MaxQueue int

	// QueueTimeout is how long a call waits in the queue before it fails with ErrUnavailable.
	// LoadTimeout starts afterwards. Default: 1 s. From 1 ms to 1 hour.
	QueueTimeout time.Duration

	// LoadRate is the maximum number of calls of load functions per second in this process, for
	// all loaders. Bursts of up to a tenth of it are allowed. Default: no limit. At most 10^9.
	LoadRate float64

	// ReplicaLag is how long keys are not cached after their invalidation. Set it if load
	// functions read from replicas of the database, to the longest lag of the replicas: see
	// PreferPrimary. Set the same value in all processes. Default: none. At most 1 minute.
	ReplicaLag time.Duration

	// StrictWrites makes readers respect holds: see Cache.Hold and consistency.Strict. Set it in
	// all processes, including those that only read. Default: false.
	StrictWrites bool

	// LeaseTTL is how long the leases and holds of a process remain after it was killed. A higher
	// value tolerates longer pauses of a process. Set the same value in all processes. Default: 2
	// s. From 100 ms to 1 minute.
	LeaseTTL time.Duration

	// Observer is called when an operation that memory cannot serve begins and ends: see
	// otelcacheaside.New. Hits in memory are not observed, and cost nothing. Default: none. An
	// interface that holds a nil pointer is an error.
	Observer Observer

	// Logger logs rare events, such as failures of Redis, lost messages and panics, each kind at
	// most once in 10 s. Records contain no keys and no values, except that the field "panic" has
	// the text of a panic of your code, and "stack" its stack. A stack also shows integer arguments
	// in hexadecimal digits, so it may contain an int64 key. Default: slog.Default(). Use
	// slog.New(slog.DiscardHandler) for no logs.
	Logger *slog.Logger
}

// LoaderOptions are the settings of a Loader. The zero value of a field means its default, and
// nil LoaderOptions mean all defaults. docs/option-notes.md has more details.
type LoaderOptions struct {
	// Version is part of the loader's keys in Redis. Change it when the type of the values
	// changes. It consists of letters, digits, "_", "." and "-". Default: "1".
	Version string

	// TTL is how long a value is fresh. SetTTL changes it for a single load. Default: 10 minutes.
	// From 10 ms to 10 years.
	TTL time.Duration

	// StaleFor is how much longer a value is served after its TTL, while it is reloaded in the
	// background, or while reloads fail. Default: 1 minute, or TTL if that is less. From 1 ms to
	// 10 years, or Forever; negative: none.
	StaleFor time.Duration

	// SoftTimeout is how long a read that has found a stale value waits for a fresh one. Default:
	// no wait. At most 1 hour.
	SoftTimeout time.Duration

	// EarlyRefresh is the beta of XFetch (Vattani et al., Optimal Probabilistic Cache Stampede
	// Prevention, VLDB 2015). A read of a fresh value starts a background reload with a
	// probability of exp(-left/(beta*delta)), where left is the rest of its TTL and delta the
	// duration of its load. A higher value reloads earlier. Default: 1. At most 100; negative:
	// none.
	EarlyRefresh float64

	// Jitter is the maximum share by which each TTL, and the life of each copy in memory, is
	// shortened at random, so that values that were stored together do not expire together.
	// Default: 0.1. At most 0.9; negative: none.
	Jitter float64

	// NullTTL is how long the absence of a row is fresh. Within StaleFor, Redis keeps it for up
	// to twice as long. Default: 1 minute, or TTL if that is less. From 10 ms to 10 years.
	NullTTL time.Duration

	// MemoryTTL is how long the memory tier serves a value, at most as long as its entry in Redis.
	// It bounds the staleness of keys that other programs delete in Redis without this library. Up
	// to Jitter of it is cut off at random. Default: as long as the entry. From 10 ms to 10 years;
	// negative: this loader does not use the memory tier.
	MemoryTTL time.Duration

	// LoadTimeout is the timeout of a load. Default: 10 s. From 1 ms to 1 hour.
	LoadTimeout time.Duration

	// MaxLoads is the maximum number of concurrent calls of this load function in this process,
	// within Options.MaxLoads. Set it for a query that is much more expensive than others. Default:
	// no separate limit.
	MaxLoads int

	// Locker is a lock that each load takes in addition to its lease: see MustLock. Set it if the
	// database must never get two concurrent loads of a row, even without Redis. Batch loaders
	// cannot use it. Default: none. An interface that holds a nil pointer is an error.
	Locker Locker

	// MustLock refuses a load whose lock cannot be acquired. Default: false; such a load runs
	// without the lock.
	MustLock bool

	// BreakAt is the share of failed loads at which the circuit breaker of this loader opens, if
	// at least 20 loads ended in the last 10 s. While it is open, no load starts. Default: 0.9.
	// At most 1; negative: no breaker.
	BreakAt float64

	// BreakFor is how long the circuit breaker stays open before it lets one load through as a
	// probe. Default: 1 s. From 1 ms to 1 hour.
	BreakFor time.Duration

	// RedisDown determines what a read does while Redis is down. Default: LoadWhenDown.
	RedisDown DownPolicy

	// BatchSize is the maximum number of keys in one call of a batch load function. Default: 100.
	// From 1 to 10,000.
	BatchSize int

	// Codec encodes values for Redis: JSON, Binary, msgpack.Codec, or your own. Default: strings
	// and []byte are stored as they are, and other types as JSON. An interface that holds a nil
	// pointer is an error.
	Codec Codec

	// AllowLoss accepts a type of which the Codec loses a part, such as fields that are not
	// exported, and values that JSON changes. A value from Redis then lacks that part, or
	// differs. Default: false; NewLoader returns an error that names the field, and a value that
	// JSON would change is not cached.
	AllowLoss bool

	// CompressAbove is the length in bytes above which an encoded value is compressed with S2, if
	// that makes it shorter. Default: no compression. At most 512 MiB.
	CompressAbove int

	// MaxValueBytes is the maximum encoded length of a value, before compression. A longer value
	// is returned but not stored (Stats.TooLarge). Default: 16 MiB. From 1 byte to 512 MiB.
	MaxValueBytes int

	// Key returns the text of a key. It is made by KeyOf. Set it for a K without a text, or with
	// pointers or interfaces; data that such a key points to must not change after the key was
	// passed. Keys with the same text must name the same row, because the load function gets only
	// the key of the first caller. Default: see NewLoader.
	Key Hook

	// Normalize returns the key that stands for all spellings of a key, for example in a
	// case-insensitive column. It is made by NormalizeOf. It is applied once to each key that a
	// caller passes. The load function, Key, Filter and Redis get only the result; GetMany returns
	// the keys of the caller. Normalizing a result again must not change it. A panic is an error of
	// the key. Default: none.
	Normalize Hook

	// Filter refuses keys that certainly have no row. It must know the keys of all rows: fill it
	// first, and insert rows with Loader.Inserting. The caller closes it after the Cache.
	// Default: none. An interface that holds a nil pointer is an error.
	Filter Filter

	// AuditEvery is how often a key that Filter has refused is checked in the database. If its
	// row exists (Stats.FilterHidden), this loader stops using the filter, and reports the key to
	// it 5 seconds later: a filter of package bloom is then not used by any process until it was
	// rebuilt. Default: 1 s. From 10 ms to 10 years; negative: never, so that no client can switch
	// the filter off with a key that no source lists, and a wrong source is not detected.
	AuditEvery time.Duration

	// Shadow makes this loader read from the database, and compare its caches in the background
	// for this share of the keys (Stats.ShadowStale). Use it before you switch a cache on.
	// Default: 0, which means no shadow. At most 1.
	Shadow float64

	// Clone copies a value for each caller. It is made by CloneOf. It must not block or panic.
	// Default: callers share values.
	Clone Hook

	// Weight returns how many bytes of memory a value takes, including everything it points to.
	// It is made by WeightOf. Set it for values with large parts that the library does not read:
	// structs that contain a lock, an atomic, a channel or a function, or a pointer to such a
	// struct; and the targets of pointers, maps and interfaces in unexported fields. Default: the
	// weight is computed from the readable parts of a value and the length of its encoding.
	Weight Hook

	// Groups returns the names of the groups of a value. It is made by GroupsOf. A group is
	// invalidated as a whole, in one step, by InvalidateGroup: all pages of a category, for
	// example. Default: values have no groups. Programs that share a loader should all set it:
	// see GroupsOf.
	Groups Hook

	// GroupKinds are the kinds of the loader's groups. If they are set, each name of a group is one
	// that GroupKind.Of returns: a name of another kind is an error of the load, of GroupKey and of
	// InvalidateGroup, and all spellings of a value are one group. Default: any name is a group.
	GroupKinds []GroupKind `json:"-"`

	// NotFound reports whether an error of the load function means that the row does not exist,
	// in addition to ErrNotFound and sql.ErrNoRows. It must be safe for concurrent use. Default:
	// no other error does.
	NotFound func(error) bool `json:"-"`

	// BadKey reports whether an error of the load function is the fault of its key, in addition to
	// ErrBadKey and the errors by which PostgreSQL, MySQL, MariaDB, SQLite and their drivers
	// refuse a value. Such an error does not count for the circuit breaker, so that a caller with
	// invalid keys does not harm others. If it is the error of a whole batch, the load function is
	// called again with parts of the batch, until the keys with that error are single. BadKey must
	// be safe for concurrent use. Default: no other error is.
	BadKey func(error) bool `json:"-"`

	// ErrorTTL is how long a failed load keeps all processes from loading the key again. During
	// that time reads get a stale value or ErrLoadFailed. Default: 200 ms. From 1 ms to 1 hour.
	ErrorTTL time.Duration
}

// A ReadOption changes one call of Get, GetMany or Each. It is Fresh, or the result of After.
type ReadOption string

// Fresh makes a read skip this process's memory tier, so that it observes every Invalidate, by
// any process, that returned nil before the read began. Use it where a process must read what
// another process has just written. It costs one round trip to Redis. With StaleWhenDown it fails
// with ErrRedis while Redis is down.
const Fresh ReadOption = "fresh"

// A DownPolicy selects what reads do while Redis is down: it cannot be reached, does not reply in
// time, or refuses commands. Reads detect that. Each of the first few waits for
// Options.ReadTimeout, and for up to three times Options.RedisTimeout more if Redis hangs while a
// lease is requested or a value is stored. After a few consecutive failures no read waits for
// Redis. The process notices within about a second that Redis is back. Under each policy, memory
// is served while it is trusted, for at most Options.MaxStaleness.
type DownPolicy uint8

const (
	// LoadWhenDown makes reads load from the database, once for all concurrent callers in this
	// process, within Options.MaxLoads. After a load, this process's memory may serve the row
	// (Stats.HitsWhileDown) until this process invalidates it, but at most for the shortest of
	// Options.MaxStaleness, its TTL and MemoryTTL, counted from the beginning of the load. So a row
	// is loaded once in that time. Nothing else is stored. With ReplicaLag or StrictWrites nothing
	// is stored, not even in memory, because only Redis knows which keys are on hold.
	LoadWhenDown DownPolicy = iota

	// StaleWhenDown spares the database: reads return the values that this process has in memory,
	// even after their TTL or while memory is not trusted, and count them as Stale. If there is
	// none, they fail with ErrRedis. They never return a value after its hard life, or after an
	// Invalidate in this process, even if that could not reach Redis. StaleWhenDown suspends the
	// bound of Options.MaxStaleness while Redis is down, because the process does not receive the
	// invalidations of processes that still reach Redis. It makes no difference whether Redis has
	// failed, or only the connection of this process.
	StaleWhenDown

	// FailWhenDown makes reads fail immediately with ErrRedis.
	FailWhenDown
)

// Forever is a StaleFor without a hard end: a value is served until it is replaced or
// invalidated. In Redis such an entry expires after ten years, so that servers that evict only
// keys with a TTL can evict it.
const Forever time.Duration = math.MaxInt64

// MinTTL and MaxTTL are the lower and upper limits of TTLs. So no TTL can mean "never stored" or
// "forever".
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 10 * 365 * 24 * time.Hour
)
