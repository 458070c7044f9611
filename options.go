package cacheaside

import (
	"log/slog"
	"math"
	"time"
)

// Options are the settings of a Cache. The zero value, and nil, are good defaults.
type Options struct {
	// Prefix begins the name of every key that the Cache uses in Redis, so that programs, and rules of an ACL, can be kept
	// apart. All processes that share entries use the same. Letters, digits, "_", "." and "-". Default: "cacheaside".
	Prefix string

	// MemoryBytes bounds the heap of this process's memory tier, for all its loaders and with its
	// own bookkeeping, whatever rows do: they may grow, or be large. While values are being put
	// into it, it may take up to a quarter more; and half a MiB besides. A value is counted with
	// what it points to; of what values share, each is counted with the whole. Not counted is what
	// functions capture and channels hold, and what a string that was cut from a longer one keeps
	// alive. A value that takes more than a quarter of MemoryBytes, or consists of more than
	// 262,144 parts, is not kept in memory (Stats.TooHeavy). Default: 64 MiB. A negative number: no
	// memory tier. From 1 MiB to 1 TiB otherwise.
	MemoryBytes int64

	// RedisTimeout bounds each command to Redis, and the commands for all keys of a batch together,
	// whatever the client's own settings; reads of values have a tighter bound, ReadTimeout. A
	// command that stores more than 64 KiB has a RedisTimeout more for each 4 MiB. Of a value of
	// more than 64 KiB the rest is read in parts of 256 KiB, each of which has a RedisTimeout: that
	// such a command takes too long is not taken for trouble. When Redis hangs, a read waits for
	// ReadTimeout before it does what LoaderOptions.RedisDown says; if Redis hangs just when a
	// lease is asked for, for three times RedisTimeout more, at the most; and for up to twice
	// RedisTimeout after a load, if it hangs then. So do the first few, until three trips in a row
	// have failed (or a server has said that it is a replica). After that nobody waits, but who
	// calls Invalidate, Refresh or Warm, which always try: in the background Redis is asked five
	// times a second whether it is back. Default: 500 ms. At least 1 ms.
	//
	// go-redis by itself ignores a context's deadline while it reads, unless the client's ContextTimeoutEnabled is set. Set it: then a lone
	// read needs no second goroutine, and nothing is left behind at a time-out; else a command that has timed out here keeps its
	// goroutine and connection until the client's own ReadTimeout.
	RedisTimeout time.Duration

	// MaxStaleness bounds how long the memory tier of a process may serve a value after another's Invalidate of it has returned nil, whatever happens to the network. As a
	// rule that is milliseconds, for processes hear of invalidations at once. A process that has not been able to make sure, for so long, that it
	// has missed none, stops serving from its memory until it has. Who sets it: who needs a tighter bound, or a memory tier that outlasts longer troubles of
	// Redis. Each process asks Redis four times in that time (on a cluster sixteen keys); if it is less than
	// RedisTimeout, one slow answer costs the trust. A process that is suspended knows it by its monotonic clock; on Linux that stands still while the whole machine is. Default: 2 s. From 20 ms to 1 minute.
	MaxStaleness time.Duration

	// ReadTimeout bounds the reads of values, which are short commands that callers wait for, more
	// tightly: when it has passed, Redis is taken for being in trouble (see
	// LoaderOptions.RedisDown). It holds for the first 64 KiB of a value, and, with half as much
	// again, for each part in which the keys of a large batch are read. It also bounds the setting
	// up of a connection for such a read. Who sets it: who knows the latency of their Redis, and
	// would rather not wait much longer than that; but a process that is short of processors must
	// not take itself for a Redis in trouble, and load the more. Default: half of RedisTimeout, so
	// 250 ms. From 1 ms to RedisTimeout.
	ReadTimeout time.Duration

	// MaxLoads is how many calls of load functions this process makes at once, for all loaders of the Cache together: the most that a cold or lost
	// cache can ask of the database. A load that ignores its context is counted until it returns. A
	// load that waits for what it has asked another loader for, of this Cache or another, is not
	// counted meanwhile, and goes on when it may: so loads never wait for each other's turns. Do
	// not query the database beside such a wait. Who sets it: everybody who knows how many queries
	// the database bears, divided by the number of processes. Default: 100. A negative number: no
	// limit.
	MaxLoads int

	// MaxQueue is how many calls wait at once for their turn, if MaxLoads or LoadRate do not allow them yet, the oldest first. What does not fit is not loaded: its callers
	// get a stale value if there is one, else ErrUnavailable, at once. Loads that others have asked
	// for come first, and are not counted; reloads in the background, for whose readers there is a
	// stale value, come last, make room where the queue is full, and do not wait for LoadRate. Who
	// sets it: who would rather turn callers away than let them wait (less), or the other way
	// round. Default: ten times MaxLoads (1,000 if that has no limit). A negative number: none
	// waits.
	MaxQueue int

	// QueueTimeout is how long a call waits for its turn, whatever for, before it is given up with ErrUnavailable; at once where LoadRate tells that it would be in vain. Its lease is kept
	// meanwhile; LoadTimeout begins after it. Who sets it: who would rather fail early, or wait longer. Default: 1 s. From 1 ms to 1 hour.
	QueueTimeout time.Duration

	// LoadRate is how many calls of load functions this process begins in a second, at most, for all loaders of the Cache together, after a burst of a
	// tenth of that (at least one). Who sets it: who pays for the database by the query, or shares it. Default: no limit.
	LoadRate float64

	// ReplicaLag is for load functions that read from replicas of the database: how far those may lag behind. After an Invalidate its keys are on hold for that long:
	// what is loaded meanwhile is shared by those who ask in the process just then, but stored nowhere; and PreferPrimary tells the load function to read from the primary. All
	// processes of the fleet set the same, those that only write included. After an InvalidateAll, and where the loader is new to Redis, since nobody has used it or Redis has lost its data, all keys
	// of a loader are on hold for that long. A hold is kept in Redis, where it may be evicted as everything is; without Redis by the process. Invalidate the key only after its row was
	// committed: from then on the time counts. Who sets it: who would spare the primary, and does not want what a replica still shows to be cached until its TTL. Default: none. At most 1 minute.
	ReplicaLag time.Duration

	// StrictWrites is for writers that keep keys from being cached while they write their rows: Cache.Hold, which needs it, and what package consistency builds on that. All processes of the fleet set the same, also those that
	// only read: then whoever asks Redis for the lease of a key also asks whether it is on hold. That costs no trip more, and nothing for what is cached; on a cluster, keys of a slot that is just being moved are loaded without a lease
	// if they are not cached. Who sets it: who needs more of some writes than that what was cached before is removed after them. Default: false.
	StrictWrites bool

	// LeaseTTL is how long the lease of a load lives without being renewed; a living process renews it every third of it. So it
	// is how long other processes wait when the process that loads is killed, and how long a process may be
	// suspended (by a garbage collector, a debugger, a live migration) before another one loads too, which is never stored twice
	// but costs a load. It is also how long a key stays on hold when the process that holds it is killed. All processes of the fleet use the same. Default: 2 s. From 100 ms to 1 minute.
	LeaseTTL time.Duration

	// Observer is told when reads that memory does not answer, loads, waits, refreshes and invalidations begin and end, as otelcacheaside.New makes one. Who sets it: who wants to see how long they take, or to trace them. Hits in memory
	// are not told of, and cost nothing. Default: none. A nil pointer in it is an error.
	Observer Observer

	// NoRedis makes a Cache without Redis, for tests and for programs of one process: New takes a
	// nil client then, and only then. The memory tier and the sharing of loads remain. Default:
	// false.
	NoRedis bool

	// Logger is told of what is rare, each at most once in 10 s, with how often it has happened since: that Redis is out of reach, and back (Info); that a circuit breaker has opened, and closed (Info); that invalidations are not heard, or were missed;
	// of loads that have panicked or were left running, of an Observer that has panicked, entries
	// and messages that cannot be read, and holds that were lost. It is never told a key or a
	// value. Default: slog.Default(). To have nothing logged: slog.New(slog.DiscardHandler).
	Logger *slog.Logger
}

// LoaderOptions are the settings of a Loader. The zero value, and nil, are good defaults.
type LoaderOptions struct {
	// Version is part of the loader's keys in Redis. Change it when the type of the values changes, so that it never meets old bytes: JSON of
	// the old type may decode into the new one without an error, with fields left zero. While programs of both versions run, each
	// Invalidate ends the entry of its own only, so a write in one leaves the other's until its TTL (InvalidateAll ends both). Another Codec needs no other
	// Version. Letters, digits, "_", "." and "-". Default: "1".
	Version string

	// TTL is how long a value is fresh. A load can set that of its own value with SetTTL. What happens to a value that nothing
	// invalidates after that, StaleFor tells. Default: 10 minutes. From 10 ms to 10 years.
	TTL time.Duration

	// StaleFor is how much longer a value is kept when its TTL has passed, to be served while it is reloaded in the background by one
	// process of the fleet, and for as long as that fails: its hard life is TTL + StaleFor. (While a load to replace it is under way, and for LeaseTTL after the process of
	// that was killed, it stays longer.) Invalidate ends both lives; Expire only the first. Forever: it has no
	// hard end. A row that does not exist is kept for at most NullTTL more. Who sets it: who wants to outlast longer troubles of the database (an hour, Forever), or
	// needs TTL to be the end (a negative number: none). Default: 1 minute, or TTL if that is less. At least 1 ms otherwise.
	StaleFor time.Duration

	// SoftTimeout is how long a read that has found a stale value waits for a fresh one. After that
	// it returns the stale one, and the load goes on without it. Without StaleFor there is no stale
	// value, and it changes nothing. Who sets it: who would rather wait a little for what is new.
	// Default: it does not wait. At most 1 hour.
	SoftTimeout time.Duration

	// EarlyRefresh is the beta of XFetch (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede Prevention, VLDB 2015): a read of a fresh value whose load took delta
	// begins to reload it in the background, with a probability of exp(-left/(beta*delta)), where left is what is left of its TTL. So a key
	// that is read often never expires, and one that nobody reads is not reloaded. Who sets it: who would reload earlier (more than 1) or
	// later (less). Default: 1. At most 100. A negative number: nothing is reloaded before its TTL has passed.
	EarlyRefresh float64

	// Jitter is the share of a life by which it may be shortened, at random, so that what was stored together does not expire
	// together. It never lengthens a life, nor shortens it to nothing. Default: 0.1. At most 0.9. A negative number: none.
	Jitter float64

	// NullTTL is how long Redis remembers that a row does not exist. Default: 1 minute, or TTL if that is less. From 10 ms to 10 years.
	NullTTL time.Duration

	// MemoryTTL is how long a value may be served from this process's memory tier, within its
	// remaining life in Redis. It bounds the staleness that no Invalidate announces: of a key that
	// was deleted in Redis by other means, or that a failover of Redis has brought back. A
	// MemoryTTL above TTL is as good as TTL. Default: 1 minute, or TTL if that is less. A negative
	// number: this loader does not use the memory tier. At least 10 ms otherwise.
	MemoryTTL time.Duration

	// LoadTimeout bounds a load: its context ends then, its callers get ErrLoadTimeout, and the next load of the key may begin
	// even if this one ignores its context. Default: 10 s. From 1 ms to 1 hour.
	LoadTimeout time.Duration

	// MaxLoads is how many calls of this loader's load function this process makes at once; Options.MaxLoads holds, too. Who sets
	// it: who has one query that is much heavier than others. Default: no limit of its own. What does not fit waits, as there, but in a queue of its own, and takes
	// nothing from other loaders meanwhile.
	MaxLoads int

	// Locker is a lock to be taken around each load, in addition to its lease: by name, the key's in Redis. It is waited for, for at most Options.QueueTimeout; then Redis is looked at once more, and only
	// if there is still nothing the row is loaded, and the lock released when it was stored. If the lock cannot be had, the load is made without it, and counted (Stats.Unlocked): a lock service that is down must
	// not take reads down. A row is loaded by one process at a time by its lease alone, as long as Redis is up. Who sets it: whose database must not see two loads of a row at once also while the
	// cache's Redis is lost; so the lock is best one of other servers, such as lock.NewRedlock. It costs a load two more trips there, and one to Redis. Not for batch loaders. The
	// caller closes it after the Cache. Default: none. A nil pointer in it is an error.
	Locker Locker

	// MustLock: a row whose lock cannot be had is not loaded; callers get a stale value if there is one, else ErrUnavailable. Who sets it: who would rather fail than load twice at once. Default: it is loaded.
	MustLock bool

	// BreakAt is the share of failed loads at which the circuit breaker of this loader opens: at least 20 calls of its load function have ended in the last 10 s, and so many of them have failed
	// or timed out. To find no row, or some of a batch, is not to fail; loads that were stopped, and those that were refused by another loader with ErrUnavailable, do not count. While it is open no load begins: callers get a stale value if there
	// is one, else ErrUnavailable. Who sets it: who has rows that cannot be loaded, and more of them than not (negative: no breaker). Default: 0.9. At most 1.
	BreakAt float64

	// BreakFor is how long the circuit breaker stays open before one load tries whether the database is back. Who sets it: who knows that theirs takes longer
	// to recover, and would not disturb it. Default: 1 s. From 1 ms to 1 hour.
	BreakFor time.Duration

	// RedisDown is what a read does while Redis is out of reach. Who sets it: whose database does not bear the reads of this loader without a cache (StaleWhenDown), or
	// whose callers have something better to do then than to wait for it (FailWhenDown). Default: LoadWhenDown.
	RedisDown DownPolicy

	// BatchSize is how many keys a batch load is asked for at once, at most; what is more is loaded by several calls, up to 8 at a time. Default:
	// 100. From 1 to 10,000. A load function of one row is not asked for more.
	BatchSize int

	// Codec is how values are written into Redis: JSON, Binary, msgpack.Codec of package msgpack,
	// or one of your own. Default: strings and []byte as they are, anything else as JSON. Set it
	// for values that JSON does not carry, or where its length or its speed matters. How to change
	// it while processes run: see Codec. A nil pointer in it is an error.
	Codec Codec

	// AllowLoss takes values of a type that the Codec does not carry there and back: a field that is
	// not exported, or has the tag json:"-", is in the value that the load function returns, and zero
	// in the value that comes from Redis. Default: NewLoader fails with an error that names the
	// field. Set it where callers do not use what is lost. A part that no value could be encoded
	// with, as a channel, is an error all the same; Check of a Codec of your own is not called.
	// Options.NoRedis needs no Codec, and so has no such error.
	AllowLoss bool

	// CompressAbove is the length of an encoded value, in bytes, above which it is compressed (S2, a faster Snappy) where that makes it
	// shorter. Who sets it: who pays for Redis' memory or for the network, and stores values of a kilobyte or more. Default: none is.
	CompressAbove int

	// MaxValueBytes bounds the encoded length of a value, before compression. One that is longer is
	// given to its callers, but not stored in Redis, and counted (Stats.TooLarge); a longer one in
	// Redis counts as Undecodable, and is neither fetched nor unpacked, but replaced by the next
	// load. Default: 16 MiB. From 1 to 512 MiB, the most that Redis stores.
	MaxValueBytes int

	// Key is the text of a key, for types that have none, or to have one text for keys that are the same to the database: where a collation
	// finds the row "foo" for the key "Foo" too, Invalidate("foo") does not reach what is cached for "Foo", unless both have one text. Made by KeyOf.
	Key Hook

	// Filter tells which keys certainly have no row: a read of one returns ErrNotFound, and neither Redis nor the database is asked, nor is anything cached. Who sets it: who is asked for many
	// keys that do not exist, all different, as by somebody who guesses them, so that caching each absence helps little and fills Redis. It must know the keys of all rows: fill it
	// before it is set here, and insert rows by Admit only; a row that it does not know is hidden. While it fails (Stats.FilterErrors), reads go on without it. It is for the key texts of one loader: another encoding of the keys, as by another Key, needs another
	// filter. And it goes by the text: where a collation finds the row "foo" for the key "Foo" too, the filter hides it from who asks for "Foo", unless Key gives both one text. It is not
	// asked by Refresh, Warm and reloads in the background, nor under Bypass, nor for what the memory tier answers. Several loaders may share one, if a key is in it when one of them has the row. The caller closes it after the Cache. Default: none. A nil pointer in it is an error.
	Filter Filter

	// AuditEvery is how often the database is asked for a key that Filter has refused: in each
	// process one refusal in so long, where the breaker is closed and a load can begin at once. It
	// goes to the load function only, and is cached nowhere. If there is a row, it is returned,
	// counted (Stats.FilterHidden) and logged, and the filter is not believed from then on until it
	// was built again, if it can be told (see Filter) in any process. So a filter that was built
	// from the wrong table does not hide rows for long, and an attacker costs one load in so long.
	// Default: 1 second. From 10 ms; negative: never. Make it longer, or never, where the database
	// is not to be asked for missing keys at all, or where it finds rows under other keys than
	// their own, as a collation does, and Key does not make them one.
	AuditEvery time.Duration

	// Shadow has this loader answer from the database, as if there were no cache, and compare with the cache beside it: for who would see for some days what it would serve, before it is switched on (Shadow: 0). Get and GetMany load, once for all who ask together, within
	// what may be loaded at once; nothing that the caches do reaches them, not even their errors. It is the share of the keys, the same ones in all processes, whose reads are then done once more in the background, as they would be in earnest: so these keys are
	// cached, hit and reloaded as they will be, and the Stats of hits are of them. What is not cached is loaded a second time for that, but never more of that than this share of all reads. Stats.ShadowStale of ShadowCompared is how much would have been stale: a difference counts if half a second later the cache still
	// serves something else than the row, which has not changed meanwhile. Invalidate and all else works as ever, and is to be called as it will be; what Get returns must not be changed, or Clone be set. RedisDown is FailWhenDown then. From 0 to 1; what is between is best for who has many keys. Default: 0, the loader answers from its caches.
	Shadow float64

	// Clone copies a value for each caller who gets it. Without it, callers and the memory tier share what a value points to. Who sets it:
	// who changes what Get returns. It must not block or panic. Made by CloneOf.
	Clone Hook

	// NotFound tells whether an error of the load function says that the row does not exist, beside
	// ErrNotFound and sql.ErrNoRows, which always do. Set it for a database layer with an error of
	// its own: a row that is missing is cached then, and does not count as a failure. It must be
	// safe for concurrent use. Default: nil, no other error does.
	//
	//	NotFound: func(err error) bool { return errors.Is(err, gorm.ErrRecordNotFound) }
	NotFound func(error) bool `json:"-"`

	// ErrorTTL is how long a failed load keeps all processes from loading the same key again. Reads
	// of it get a stale value meanwhile if there is one, else ErrLoadFailed; in the process whose
	// load failed that wraps the load's error. Invalidate and Refresh end it, and so does the hard
	// end of a value that was served meanwhile. Redis keeps it, without the error; without Redis,
	// and while it is out of reach, each process keeps its own. Default: 200 ms. From 1 ms to
	// 1 hour. Make it longer where a load that fails is dear.
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

// DownPolicy is what reads do while Redis is out of reach: not reached, not answering in time, or refusing to. That is noticed by the reads themselves (each waits for
// Options.ReadTimeout at most, until a few in a row have failed); then nobody waits for it any more, and its return is noticed within about a second. Memory is
// served meanwhile as long as it may be trusted (Options.MaxStaleness), under each policy.
type DownPolicy uint8

const (
	// LoadWhenDown has reads load from the database, once for all who ask in this process at the
	// time, within Options.MaxLoads. Such a row may be served from this process's memory
	// until Options.MaxStaleness has passed since its load began (Stats.HitsWhileDown), unless this
	// process invalidates it: so a row is loaded once in that time. Nothing else is stored; and
	// with ReplicaLag or StrictWrites nothing at all, for only Redis knows which keys are on hold.
	LoadWhenDown DownPolicy = iota

	// StaleWhenDown spares the database: reads are answered by what this process has in memory, also where its TTL or the trust in it has ended (but not beyond its
	// hard life, nor after an Invalidate in this process, even one that could not reach Redis), and counted as Stale; else they fail with ErrRedis. So it gives up Options.MaxStaleness, while Redis is out of reach: an Invalidate
	// of a process that still reaches it is not heard. It makes no difference whether Redis has failed, or only this process' way to it.
	StaleWhenDown

	// FailWhenDown has reads fail with ErrRedis, at once.
	FailWhenDown
)

// Forever is, as LoaderOptions.StaleFor, a life without a hard end: a value is served until it has been replaced or invalidated. (In Redis it has one after ten years, so
// that servers that evict only keys with an end can evict it.)
const Forever time.Duration = math.MaxInt64

// MinTTL and MaxTTL are the range of every time to live: so none means "never stored" or "for ever".
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 10 * 365 * 24 * time.Hour
)
