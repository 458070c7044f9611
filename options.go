package cacheaside

import (
	"log/slog"
	"math"
	"time"
)

// Options are the settings of a Cache. The zero value, and nil, are good defaults. The notes on
// them are in docs/option-notes.md.
type Options struct {
	// Prefix begins every key of the Cache in Redis. Processes that share entries use the same
	// Prefix. Letters, digits, "_", "." and "-". Default: "cacheaside".
	Prefix string

	// MemoryBytes bounds the heap of the memory tier of this process, for all loaders. A value of
	// more than a quarter of it is not kept in memory. Only plain data of a value is read to weigh
	// it: see LoaderOptions.Weight. Default: 64 MiB. From 1 MiB to 1 TiB, and less than the address
	// space; negative: no memory tier.
	MemoryBytes int64

	// RedisTimeout bounds each command to Redis, and the commands for all keys of a batch together.
	// Set the client's ContextTimeoutEnabled, too: else a command that times out keeps its
	// goroutine and connection. Default: 500 ms. From 1 ms to 1 hour.
	RedisTimeout time.Duration

	// MaxStaleness bounds how long the memory tier of a process serves a value after another
	// process has invalidated it, whatever happens to the network. Usually that takes milliseconds.
	// Redis is asked four times in that time. Default: 2 s. From 20 ms to 1 minute.
	MaxStaleness time.Duration

	// ReadTimeout bounds reads of values. After it Redis counts as being in trouble: see
	// LoaderOptions.RedisDown. Make it shorter only where processes never lack processors. Default:
	// half of RedisTimeout. From 1 ms to RedisTimeout.
	ReadTimeout time.Duration

	// MaxLoads is how many calls of load functions this process makes at once, for all loaders. Set
	// it to the number of queries that the database bears, divided by the number of processes.
	// Default: 100. Negative: no limit.
	MaxLoads int

	// MaxQueue is how many calls wait for their turn. Beyond it callers get a stale value or
	// ErrUnavailable at once. Default: ten times MaxLoads (1,000 without a limit). Negative: none
	// waits.
	MaxQueue int

	// QueueTimeout is how long a call waits for its turn, before it fails with ErrUnavailable.
	// LoadTimeout begins after it. Default: 1 s. From 1 ms to 1 hour.
	QueueTimeout time.Duration

	// LoadRate is how many calls of load functions this process begins in a second, for all
	// loaders, after a burst of a tenth of that. Default: no limit.
	LoadRate float64

	// ReplicaLag keeps the keys of an Invalidate from being cached for so long, for load functions
	// that read from replicas of the database: see PreferPrimary. Set it to the longest lag of the
	// replicas, in all processes. Default: none. At most 1 minute.
	ReplicaLag time.Duration

	// StrictWrites makes readers respect holds: see Cache.Hold and consistency.Strict. Set it in
	// all processes, also in those that only read. Default: false.
	StrictWrites bool

	// LeaseTTL is how long a lease, or a hold, outlives a process that was killed. More outlasts
	// longer pauses of a process. All processes use the same. Default: 2 s. From 100 ms to 1
	// minute.
	LeaseTTL time.Duration

	// Observer is told when operations begin and end that memory does not answer: see
	// otelcacheaside.New. Hits in memory cost nothing. Default: none. A nil pointer in it is an
	// error.
	Observer Observer

	// NoRedis makes a Cache without Redis, for tests and for programs of one process: New takes a
	// nil client then, and only then. Default: false.
	NoRedis bool

	// Logger gets a record of rare events, such as trouble with Redis, lost messages and panics,
	// each at most once in 10 s. Records have no keys and no values. Default: slog.Default(). For
	// no records: slog.New(slog.DiscardHandler).
	Logger *slog.Logger
}

// LoaderOptions are the settings of a Loader. Nil is all defaults. Notes: docs/option-notes.md.
type LoaderOptions struct {
	// Version is part of the loader's keys in Redis. Change it when the type of the values changes.
	// Letters, digits, "_", "." and "-". Default: "1".
	Version string

	// TTL is how long a value is fresh. SetTTL changes it for a single load. Default: 10 minutes.
	// From 10 ms to 10 years.
	TTL time.Duration

	// StaleFor is how much longer a value is served after its TTL, while it is reloaded in the
	// background, or while that fails. Default: 1 minute, or TTL if that is less. From 1 ms, or
	// Forever; negative: none.
	StaleFor time.Duration

	// SoftTimeout is how long a read that has found a stale value waits for a fresh one. Default:
	// it does not wait. At most 1 hour.
	SoftTimeout time.Duration

	// EarlyRefresh is the beta of XFetch (Vattani et al., Optimal Probabilistic Cache Stampede
	// Prevention, VLDB 2015): a read reloads a fresh value in the background, with a probability of
	// exp(-left/(beta*delta)); delta is how long it took to load. Default: 1. At most 100;
	// negative: none.
	EarlyRefresh float64

	// Jitter is the share of a life by which it may be shortened, at random, so that values which
	// were stored together do not expire together. Default: 0.1. At most 0.9; negative: none.
	Jitter float64

	// NullTTL is how long the absence of a row is fresh; within StaleFor, Redis remembers it for up
	// to twice as long. Default: 1 minute, or TTL if that is less. From 10 ms to 10 years.
	NullTTL time.Duration

	// MemoryTTL is how long the memory tier serves a value. It bounds the staleness that no
	// Invalidate announces. Default: 1 minute, or TTL if that is less. From 10 ms; negative: this
	// loader does not use the memory tier.
	MemoryTTL time.Duration

	// LoadTimeout bounds a load. Default: 10 s. From 1 ms to 1 hour.
	LoadTimeout time.Duration

	// MaxLoads is how many calls of this load function this process makes at once, within
	// Options.MaxLoads. Set it for a query much heavier than others. Default: no limit of its own.
	MaxLoads int

	// Locker is a lock around each load, beside its lease: see MustLock. Set it if a database must
	// not see two loads of a row at once even without Redis. Not for batch loaders. Default: none.
	Locker Locker

	// MustLock refuses a load whose lock cannot be had. Default: it is made without.
	MustLock bool

	// BreakAt is the share of failed loads at which the circuit breaker of this loader opens, of at
	// least 20 in 10 s. Then no load begins. Default: 0.9. At most 1; negative: none.
	BreakAt float64

	// BreakFor is how long the circuit breaker stays open before one load may try. Default: 1 s.
	// From 1 ms to 1 hour.
	BreakFor time.Duration

	// RedisDown says what a read does while Redis is out of reach. Default: LoadWhenDown.
	RedisDown DownPolicy

	// BatchSize is how many keys a call of a batch load function gets at most. Default: 100. From 1
	// to 10,000.
	BatchSize int

	// Codec writes values into Redis: JSON, Binary, msgpack.Codec, or your own. Default: strings
	// and []byte as they are, all else as JSON. A nil pointer in it is an error.
	Codec Codec

	// AllowLoss accepts a type of which the Codec loses a part, such as fields that are not
	// exported, and values that JSON changes. Then a value from Redis lacks that part, or differs.
	// Default: NewLoader fails, and names the field; a value that JSON would change is not cached.
	AllowLoss bool

	// CompressAbove is the length in bytes above which an encoded value is compressed (S2), if that
	// makes it shorter. Default: none is compressed.
	CompressAbove int

	// MaxValueBytes bounds the encoded length of a value before compression. A longer one is not
	// stored (Stats.TooLarge). Default: 16 MiB. From 1 to 512 MiB.
	MaxValueBytes int

	// Key returns the text of a key. Made by KeyOf. Set it for a K without a text, or with pointers
	// or interfaces, whose targets must not change once it was passed. Keys with one text must name
	// one row: the load function gets only the key of the caller who came first. Default: see
	// NewLoader.
	Key Hook

	// Normalize returns the key that stands for all spellings of a key, as in a case-insensitive
	// column. Made by NormalizeOf. It is applied once to each key that a caller passes: the load
	// function, Key, Filter and Redis see the result only; GetMany returns the keys of the caller.
	// A result must be its own result. A panic is an error of the key. Default: none.
	Normalize Hook

	// Filter refuses keys that certainly have no row. It must know the keys of all rows: fill it
	// first, and insert rows by Loader.Inserting. The caller closes it after the Cache. Default:
	// none.
	Filter Filter

	// AuditEvery is how often a key that Filter has refused is looked up in the database. If its
	// row exists (Stats.FilterHidden), the filter is not used until it was rebuilt. A key that the
	// rebuilt filter still lacks does not end it again. Default: 1 s. From 10 ms; negative: never.
	AuditEvery time.Duration

	// Shadow makes this loader answer from the database, and compare its caches for this share of
	// the keys (Stats.ShadowStale), before a cache is switched on. Default: 0, no shadow. At most
	// 1.
	Shadow float64

	// Clone copies a value for each caller that gets it. It must not block or panic. Made by
	// CloneOf. Default: callers share values.
	Clone Hook

	// Weight returns how many bytes of memory a value takes, with what it points to. Set it for
	// values with large parts that cannot be weighed: what is in a struct that has a lock, an
	// atomic, a channel or a function, or points to one; and what a pointer, map or interface in a
	// field that is not exported leads to. Made by WeightOf. Default: values are weighed by what
	// can be read of them, and by the length of their encoding.
	Weight Hook

	// NotFound reports whether an error of the load function says that the row does not exist,
	// beside ErrNotFound and sql.ErrNoRows. Many goroutines call it at once. Default: no other
	// error does.
	NotFound func(error) bool `json:"-"`

	// ErrorTTL is how long a failed load keeps all processes from loading the key again: reads get
	// a stale value or ErrLoadFailed. Default: 200 ms. From 1 ms to 1 hour.
	ErrorTTL time.Duration
}

// ReadOption changes one call of Get, GetMany or Each.
type ReadOption struct{ kind readKind }

type readKind uint8

const fresh readKind = 1

// Fresh makes a read skip this process's memory tier, so that it observes every Invalidate, by any
// process, that returned nil before the read began. It costs one trip to Redis, and under
// StaleWhenDown fails with ErrRedis while Redis is out of reach. Use it where a process must read
// what another has just written.
var Fresh = ReadOption{fresh}

// DownPolicy is what reads do while Redis is out of reach: not reached, not answering in time, or
// refusing to. The reads themselves notice that (each waits for Options.ReadTimeout, and for up to
// three times Options.RedisTimeout more if Redis hangs just when a lease is asked for or a value is
// stored, until a few in a row have failed). Then nobody waits for Redis any more, and its return
// is noticed within about a second. Memory is served meanwhile as long as it may be trusted
// (Options.MaxStaleness), under each policy.
type DownPolicy uint8

const (
	// LoadWhenDown makes reads load from the database, once for all callers in this process at the
	// time, within Options.MaxLoads. Such a row may be served from this process's memory until
	// Options.MaxStaleness, or its TTL or MemoryTTL if that is less, has passed since its load
	// began (Stats.HitsWhileDown), unless this process invalidates it: so a row is loaded once in
	// that time. Nothing else is stored; and with ReplicaLag or StrictWrites nothing at all, for
	// only Redis knows which keys are on hold.
	LoadWhenDown DownPolicy = iota

	// StaleWhenDown spares the database: reads are answered by the values that this process has in
	// memory, also where a value's TTL or the trust in memory has ended (but not beyond its hard
	// life, nor after an Invalidate in this process, even one that could not reach Redis), and
	// counted as Stale; else they fail with ErrRedis. So StaleWhenDown gives up
	// Options.MaxStaleness, while Redis is out of reach: an Invalidate of a process that still
	// reaches Redis is not heard. It makes no difference whether Redis has failed, or only this
	// process' way to Redis.
	StaleWhenDown

	// FailWhenDown has reads fail with ErrRedis, at once.
	FailWhenDown
)

// Forever is, as LoaderOptions.StaleFor, a life without a hard end: a value is served until it has
// been replaced or invalidated. (In Redis it ends after ten years, so that servers that evict only
// keys with an end can evict it.)
const Forever time.Duration = math.MaxInt64

// MinTTL and MaxTTL are the range of every time to live: so none means "never stored" or "for
// ever".
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 10 * 365 * 24 * time.Hour
)
