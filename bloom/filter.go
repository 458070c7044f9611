// Package bloom provides Bloom filters that never refuse a key that was added. A filter returns
// false, "certainly not there", or true, "maybe".
//
//	// A filter for a million keys, with 1 % of false positives.
//	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, nil)
//	// A copy of it in this process's memory.
//	replica, err := bloom.NewReplica(filter)
//	// Maintain builds the filter from the table, and rebuilds it when necessary.
//	go replica.Maintain(ctx, bloom.Table[int64](db, "users", "id"), nil)
//
//	maybe, err := replica.MightContain(ctx, "42")
//
// In front of a loader (cacheaside.LoaderOptions.Filter), a filter refuses keys that do not exist
// before they reach Redis or the database. A DenyList uses a filter the other way around: it
// denies keys that exist.
//
// # The filters
//
//   - Local is stored in the memory of one process. It contains only the keys that this process
//     has added or read from its source. Use it for a set that does not change, or if there is
//     only one process.
//   - Redis stores its bits in Redis, for all processes. A lookup takes one round trip.
//   - Replica is a copy of a Redis filter in the memory of the process. Announcements from other
//     processes keep it current. A lookup takes nanoseconds and no round trip.
//
// All filters use the hashes and the bit layout of github.com/bits-and-blooms/bloom. A filter of
// up to 2^18 bits is one filter of that library. A larger one consists of several, called
// segments, and each key belongs to one of them. All filters can be rebuilt while they serve
// lookups. A rebuild is the only way to remove keys or to increase the capacity.
//
// # Guarantees
//
// A lookup finds a key if it begins after Add has returned nil. For a row that is being inserted,
// the lookup must begin after Inserting's function committed has returned nil. This holds for a
// Local, for a Redis filter in every process, and for a Replica if it or its Redis filter added the
// key. A Replica normally finds the keys that other processes add within milliseconds, and always
// within Options.MaxStaleness. A filter returns "maybe" if it is missing, not built, partly lost,
// built with other parameters, or unreachable.
//
// The guarantee requires that Redis keeps the writes that it has acknowledged. A failover, a
// restart, a restored dump or a swap of two databases can lose keys of a filter. The processes
// that use the filter detect that within a second. The filter then returns "maybe" until it has
// been rebuilt (see Maintain). A source that reads from a lagging replica, or from a snapshot
// taken before the rebuild began, omits rows, and the filter refuses their keys.
//
// Keys are compared byte for byte. If a collation of the database finds the row "foo" for the key
// "Foo", a filter that contains "foo" still refuses "Foo". Normalize keys before adding them and
// before looking them up.
//
// # Redis
//
// A filter consists of these keys in Redis:
//
//   - prefix::bloom:{name}, a descriptor;
//   - two hashes in the same slot, with the records of its generations and the watermarks of the
//     processes that use it;
//   - prefix::bloom:{name/generation/segment}, a string of 32 KiB for each segment.
//
// No key has a TTL. A maxmemory policy that evicts any key (allkeys-…) can evict segments. The
// keys of an evicted segment are "maybe" until the next rebuild. A server that is out of memory
// rejects Adds. While a cluster migrates a slot, an Add of many keys can fail for a moment; retry
// it. Announcements are published to the channel prefix::bloom:{name}::invalidations. They are
// numbered in a key in the filter's slot.
//
// With an ACL, the user needs ~prefix*, &prefix*, and the commands GET, SET, GETRANGE, STRLEN,
// GETBIT, SETBIT, BITOP, BITCOUNT, DEL, UNLINK, HGET, HSET, HDEL, HINCRBY, HGETALL, HMGET,
// PERSIST, TIME, EVAL, EVALSHA, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING. INFO is needed to
// detect restarts that leave no other trace. The user also needs the commands of lock.NewRedis.
// Each process that uses a filter sends a few short commands twice a second.
package bloom

import "context"

// Filter is the interface that Local, Redis and Replica implement. It is for code that fills
// filters: cacheaside.Filter, the interface that loaders need, has no AddMany.
type Filter interface {
	// MightContain reports whether a key may have been added. False means that it certainly was
	// not. The result is true if the filter cannot decide.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany is MightContain for many keys. The result always has the length of keys,
	// even if there is an error.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany adds keys.
	AddMany(ctx context.Context, keys []string) error

	// Inserting adds keys whose rows are being inserted. The caller calls Inserting before the
	// transaction commits, and committed after that.
	Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound records the number of keys that the filter returned "maybe" for, and whose rows do
	// not exist.
	NotFound(keys int)
}

var (
	_ Filter = (*Local)(nil)
	_ Filter = (*Redis)(nil)
	_ Filter = (*Replica)(nil)
)

// A DenyList reports which keys are on a list, such as blocked e-mail addresses. Most keys are not
// on the list, and a filter of the list finds that out without reading the list. A DenyList is safe
// for concurrent use if its filter and check are.
type DenyList struct {
	filter Filter
	check  func(ctx context.Context, key string) (bool, error)
}

// NewDenyList creates a DenyList from a filter that contains all denied keys, and from check, which
// looks a key up in the list itself. check is called only for keys that the filter returns "maybe"
// for, so that no key is denied because of a false positive. If check is nil, these keys are
// denied. At a rate of 1 %, this denies one in a hundred of the keys that are not on the list.
// While the filter is incomplete or unreachable, it also denies all keys.
//
// A key is reliably denied only once it has been added to the filter (Filter.AddMany, Inserting). A
// key that was taken off the list stays in the filter until the next Rebuild; until then check
// reports that it is not denied.
//
// The filter compares keys byte for byte, so normalize a key before calling Denied. If the list
// has "ada@example.com", the key "Ada@example.com" is not denied, even if check would deny it.
func NewDenyList(filter Filter, check func(ctx context.Context, key string) (bool, error)) *DenyList {
	return &DenyList{filter: filter, check: check}
}

// Denied reports whether key is on the list. If check returns an error, Denied returns true with
// that error, and the caller can decide otherwise. If the filter returns an error, check decides
// and Denied returns no error. Without a check, Denied returns true with the error of the filter.
func (d *DenyList) Denied(ctx context.Context, key string) (bool, error) {
	maybe, err := d.filter.MightContain(ctx, key)
	if !maybe && err == nil {
		return false, nil
	}
	if d.check == nil {
		return true, err
	}
	denied, failed := d.check(ctx, key)
	if failed != nil {
		return true, failed
	}
	if !denied && err == nil {
		d.filter.NotFound(1)
	}
	return denied, nil
}
