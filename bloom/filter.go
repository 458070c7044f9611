// Package bloom is Bloom filters that never hide a row: they never say "certainly not there" of a
// key that was added.
//
//	// for a million keys, at 1 % of false positives
//	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, nil)
//	// answered in this process's memory
//	replica, err := bloom.NewReplica(filter)
//	// built from the table, and again when it is due
//	go replica.Maintain(ctx, bloom.Table[int64](db, "users", "id"), nil)
//
//	maybe, err := replica.MightContain(ctx, "42")
//
// In front of a loader (cacheaside.LoaderOptions.Filter) a filter turns away keys that do not exist
// before they reach Redis or the database. As a DenyList it turns away those that do.
//
// # The filters
//
//   - Local is in the memory of one process, and knows only the keys that this process has added or
//     read from its source. Use it for a set that does not change, or for a single process.
//   - Redis keeps its bits in Redis, for all processes. A lookup is one trip.
//   - Replica is a copy of such a filter in the memory of the process, kept up by what others
//     announce: lookups take nanoseconds and no trip.
//
// All have the bits of github.com/bits-and-blooms/bloom; a filter of up to 2^18 bits is one of that
// library's, a larger one is several of them, a key being in one. All can be rebuilt while they
// serve, which is the only way to take keys out of them, or to make them larger.
//
// # What they promise
//
// A lookup that begins after Add, or for rows that are being inserted Admit's committed, has
// returned nil finds the key. This holds for a Local, for a Redis filter in any process, and for a
// Replica if the key was added by it or by its Redis filter. A Replica finds the keys of others
// within milliseconds as a rule, and within Options.MaxStaleness for certain. A filter that is
// missing, not built yet, lost in part, built differently or out of reach returns "maybe".
//
// This holds while Redis keeps what it has acknowledged. A failover, a restart, a restored dump or
// two swapped databases may lose keys of a filter. The processes that use it notice that within a
// second, and it returns "maybe" until it was built again (see Maintain). A source that reads from
// a replica that lags, or a snapshot from before the rebuild began, hides what it does not see.
//
// Keys are compared byte for byte. Where a collation of the database finds the row "foo" for the
// key "Foo", a filter that has "foo" says no to "Foo": give both one text before they are added or
// asked for.
//
// # Redis
//
// A filter is a descriptor, prefix::bloom:{name}, two hashes next to it, with the records of its
// generations and the marks of the processes that use it, and one string for each segment of 32
// KiB, prefix::bloom:{name/generation/segment}. None has an end of life: with a policy that evicts
// any key (allkeys-…) segments may be evicted, and answer "maybe" until the next rebuild. A full
// server refuses Adds; while a cluster moves a slot, Adds of many keys may fail for a moment: try
// again. Announcements go by the Redis channel prefix::bloom:{name}::invalidations, and are
// numbered in a key of that name's slot. With an ACL, the user needs ~prefix*, &prefix*, and GET,
// SET, GETRANGE, STRLEN, GETBIT, SETBIT, BITOP, BITCOUNT, DEL, UNLINK, HGET, HSET, HDEL, HINCRBY,
// HGETALL, HMGET, PERSIST, TIME, EVAL, EVALSHA, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING; INFO, if
// restarts are to be noticed that nothing else shows; and what package lock needs for NewRedis.
// Each process that uses a filter asks a few short questions of it twice a second.
package bloom

import "context"

// Filter is what Local, Redis and Replica have in common. cacheaside.LoaderOptions.Filter takes
// one.
type Filter interface {
	// MightContain tells whether a key may have been added: false means that it certainly was not.
	// The answer is true where the filter cannot say.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany is MightContain for many keys: the result is as long as keys, whatever the
	// error.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany adds keys.
	AddMany(ctx context.Context, keys []string) error

	// Admit adds keys whose rows are being inserted, before the transaction commits, and committed
	// is called after that.
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound tells how many keys that the filter took for present were not there.
	NotFound(keys int)
}

var (
	_ Filter = (*Local)(nil)
	_ Filter = (*Redis)(nil)
	_ Filter = (*Replica)(nil)
)

// DenyList tells which keys are on a list, such as blocked e-mail addresses: most keys are not, and
// a filter of the list says so without asking the list. A DenyList is safe for concurrent use if
// its filter and check are.
type DenyList struct {
	filter Filter
	check  func(ctx context.Context, key string) (bool, error)
}

// NewDenyList makes a DenyList of a filter of all keys that are denied, and check, which looks a
// key up in the list itself, which is exact. check is asked for the few keys of which the filter
// says "maybe", so that no key is denied for a false positive. A nil check denies them: one in a
// hundred of the keys that are not on the list, at a rate of 1 %, and all of these while the filter
// is not complete or cannot be asked.
//
// The filter must have a key before it is to be denied for certain (Filter.AddMany, Admit), and
// forgets a key that was taken off the list with the next Rebuild; until then check says that the
// key is not denied.
//
// The filter compares keys byte for byte. Normalise a key before Denied: if the list has
// "ada@example.com", the key "Ada@example.com" is not denied, whatever check would say.
func NewDenyList(filter Filter, check func(ctx context.Context, key string) (bool, error)) *DenyList {
	return &DenyList{filter: filter, check: check}
}

// Denied tells whether key is on the list. If check returns an error, Denied returns true, with the
// error: in doubt it denies; the caller may decide otherwise. A filter that could not be asked is
// no error where check can say; without a check that error is returned, with true.
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
