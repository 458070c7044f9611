package cacheaside

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// Stats are counts since the start, of one Loader or of all loaders of a Cache. The counts are not
// read at the same instant, so they may differ by concurrent operations. The metrics of package
// otelcacheaside have the same meaning. A lookup is one read of a key for all callers that share
// it.
type Stats struct {
	Gets       int64 // keys read with Get, GetMany or Each; not those of Warm and Refresh
	MemoryHits int64 // Gets served from the memory of this process
	RedisHits  int64 // lookups served by an entry in Redis; callers that share a lookup count once
	NullHits   int64 // hits of a cached absence, in memory and in Redis

	// reads served from memory by a value that this process has loaded while Redis was down, within
	// Options.MaxStaleness; most are also MemoryHits
	HitsWhileDown int64

	Loads        int64 // rows requested from load functions
	LoadCalls    int64 // calls of load functions; one call of a batch load function requests many rows
	LoadErrors   int64 // rows that could not be loaded; ErrNotFound does not count
	CompareLoads int64 // rows loaded for a comparison with a copy, by a meter or by LoaderOptions.Shadow
	// calls of load functions that still ran at LoadTimeout; they continue, and their results are
	// discarded
	LoadsLeft   int64
	Unavailable int64 // calls of load functions refused with ErrUnavailable
	// loads that ran without their lock (LoaderOptions.Locker), because it could not be acquired,
	// was lost, or could not be released in time
	Unlocked int64
	// reloads started in the background, because the TTL of a value had passed or was about to
	BackgroundRefreshes int64
	EarlyRefreshes      int64 // reloads started in the background while the value was fresh
	// stale values returned after their TTL, and with StaleWhenDown from memory that was not
	// trusted
	Stale      int64
	Held       int64 // loaded values not stored because their keys were on hold (Options.ReplicaLag, StrictWrites)
	Unasked    int64 // values that a batch load function returned for keys that it was not given; they are ignored
	TooLarge   int64 // values returned but not stored in Redis because their encoding is longer than MaxValueBytes
	NotCarried int64 // values returned but not cached because JSON would change them: see JSON
	// values not kept in memory because they take more than a quarter of Options.MemoryBytes, have
	// too many parts to be weighed, or have an invalid Weight
	TooHeavy int64
	// loaded values with more than 64 groups, which belong to all groups: any InvalidateGroup of
	// the loader outdates them
	ManyGroups   int64
	StoredHeld   int64 // values that a write has stored in place of its hold (consistency.WriteThrough)
	FailedByMark int64 // lookups that returned ErrLoadFailed without a load, because a load of the key had just failed
	// the number of loaders whose circuit breaker (LoaderOptions.BreakAt) is open now: 0 or 1 for a
	// Loader
	BreakersOpen int64

	Filtered int64 // lookups refused by LoaderOptions.Filter: their keys certainly have no row
	// lookups that passed the filter and found no row, in Redis or by a load; hits in memory do not
	// ask the filter
	FalsePositives int64
	FilterAudits   int64 // refused lookups that were checked in the database (LoaderOptions.AuditEvery)
	// audits that found a row, which was returned; after the first one the filter is not used until
	// it was rebuilt or knows the key
	FilterHidden int64
	// failed calls of the filter: lookups, which continue without it, and calls of Inserting,
	// committed, NotFound and Hidden
	FilterErrors int64

	Waits   int64 // lookups that waited for a load of another lookup, mostly in another process
	Refused int64 // loaded values discarded because of an invalidation during the load, or a lost lease
	// results that Redis did not confirm, because it was down, the key was on hold, or too many
	// loads were refused
	Unvalidated int64
	Bypassed    int64 // results that Redis did not confirm because of Bypass; they are also Unvalidated
	// entries in Redis that an InvalidateAll or InvalidateGroup has ended, that are too old for the
	// options of this loader, or whose generation Redis has forgotten; each is a miss
	Outdated    int64
	Undecodable int64 // entries in Redis that could not be decoded; each is a miss
	RedisErrors int64 // failed commands to Redis, including those that no caller got an error for
	// failed commands to Redis that store, renew or release something, including those that were
	// not sent because Redis was down
	WriteErrors int64
	// lookups made without Redis because it was down, did not reply, or refused: see
	// LoaderOptions.RedisDown
	RedisDown int64
	Abandoned int64 // lookups cancelled because all their callers had left
	// keys whose Invalidate or Expire Redis has acknowledged; a group and an InvalidateAll count
	// once
	Invalidated      int64
	InvalidateErrors int64 // keys whose Invalidate or Expire has failed; a group and an InvalidateAll count once

	// keys read from the database because of LoaderOptions.Shadow; Gets and the counts after it are
	// those of the repeated reads
	ShadowReads    int64
	ShadowMisses   int64 // repeated reads that the caches could not serve
	ShadowCompared int64 // repeated reads that the caches served, and that were compared with the row
	ShadowStale    int64 // compared reads that differed from the row for half a second or longer
	// repeated reads that could not be compared: too many reads or loads, a failure, or a change of
	// the row or the cached value during the comparison
	ShadowUndecided int64

	// The counts below are those of the Cache, also in the Stats of each of its loaders.

	HoldsLost int64 // keys whose hold was lost before its end, because Redis has lost its data or was down
	// keys left on hold until the hold expires (Options.LeaseTTL), by Abandon or because they could
	// not be released
	HoldsLeft int64
	// ranges of keys, out of Bus.Ranges, for which Redis is down now; their reads follow
	// LoaderOptions.RedisDown
	RedisOut       int
	ObserverPanics int64    // calls of Options.Observer that panicked
	Bus            BusStats // the announcements of invalidations
}

// HitRatio returns the share of reads that were served by a cache, from 0 to 1: the hits in memory
// and in Redis, divided by these hits and the rows that were loaded for callers. Reads of a key
// that share a lookup in Redis, or a load, count once. Background reloads do not count. HitRatio
// returns 0 if there were no hits.
func (s Stats) HitRatio() float64 {
	hits := float64(s.MemoryHits + s.RedisHits)
	misses := float64(max(0, s.Loads-s.BackgroundRefreshes-s.CompareLoads))
	if hits == 0 {
		return 0
	}
	return hits / (hits + misses)
}

// BusStats are the figures about announcements, by which processes notify each other of
// invalidations.
type BusStats struct {
	// ranges of keys whose announcements are numbered separately: 1, or 16 on a cluster; 0 without
	// Redis
	Ranges  int
	Trusted int // ranges of keys that may be served from memory now
	// the process is subscribed to invalidations; a process without a memory tier, or before its
	// first read, is not
	Subscribed  bool
	Subscribes  int64 // confirmed subscriptions
	Disconnects int64 // subscriptions that were lost or could not be made
	Gaps        int64 // times that announcements were missing, and the memory of their range was cleared
	// times that memory was not served because it was unknown whether announcements were missing,
	// and none were
	Lapses    int64
	Received  int64 // messages received from other processes; each announces one or more keys
	Announced int64 // messages published by this process
	Malformed int64 // messages that could not be read; a message of a newer format clears the memory of its range
	Questions int64 // questions received from meters (package meter)
	// questions from meters without a reply by this process: there were too many, it was too late,
	// or Redis failed
	Unanswered  int64
	FailedPolls int64 // failed polls for the latest announcement

	// from the announcement of an invalidation until it is received: about the mean of the last 16.
	// It is measured by polls, with a precision of half a round trip
	Delay    time.Duration
	MaxDelay time.Duration // the longest such time since the start
}

// addLoader adds the counts of a loader to s.
func (s *Stats) addLoader(c rows.Counts) {
	s.addReads(c.Fetch)
	s.Loads += c.Source.Loads.Load()
	s.LoadCalls += c.Source.LoadCalls.Load()
	s.LoadErrors += c.Source.LoadErrors.Load()
	s.LoadsLeft += c.Source.LoadsLeft.Load()
	s.Unasked += c.Source.Unasked.Load()
	s.Unavailable += c.Source.Unavailable.Load()
	if c.Broken {
		s.BreakersOpen++
	}
	if c.Shadow != nil {
		s.ShadowStale += c.Shadow.Stale.Load() // before ShadowCompared, which includes it
		s.ShadowCompared += c.Shadow.Compared.Load()
		s.ShadowMisses += c.Shadow.Misses.Load()
		s.ShadowUndecided += c.Shadow.Undecided.Load()
		s.ShadowReads += c.Shadow.Reads.Load()
	}
}

// addReads adds the counts of reads to s.
func (s *Stats) addReads(c *fetch.Counters) {
	nulls, hits := c.MemoryNulls.Load(), c.MemoryHits.Sum()
	s.Gets += hits + c.Misses.Load()
	s.MemoryHits += hits
	s.NullHits += c.NullHits.Load() + nulls
	for _, p := range []struct {
		to   *int64
		from *atomic.Int64
	}{
		{&s.RedisHits, &c.RedisHits}, {&s.HitsWhileDown, &c.HitsWhileDown}, {&s.TooLarge, &c.TooLarge},
		{&s.NotCarried, &c.NotCarried}, {&s.TooHeavy, &c.TooHeavy}, {&s.ManyGroups, &c.ManyGroups},
		{&s.StoredHeld, &c.StoredHeld}, {&s.CompareLoads, &c.CompareLoads},
		{&s.FailedByMark, &c.FailedByMark}, {&s.Waits, &c.Waits}, {&s.Refused, &c.Refused},
		{&s.Unvalidated, &c.Unvalidated},
		{&s.Bypassed, &c.Bypassed}, {&s.Undecodable, &c.Undecodable}, {&s.Outdated, &c.Outdated},
		{&s.RedisErrors, &c.RedisErrors},
		{&s.Unlocked, &c.Unlocked}, {&s.BackgroundRefreshes, &c.BackgroundRefreshes}, {&s.EarlyRefreshes, &c.Early},
		{&s.Stale, &c.Stale}, {&s.Held, &c.Held},
		{&s.WriteErrors, &c.WriteErrors}, {&s.RedisDown, &c.RedisDown},
		{&s.Filtered, &c.Filtered}, {&s.FalsePositives, &c.FalsePositives}, {&s.FilterErrors, &c.FilterErrors},
		{&s.FilterAudits, &c.FilterAudits}, {&s.FilterHidden, &c.FilterHidden},
		{&s.Abandoned, &c.Abandoned}, {&s.Invalidated, &c.Invalidated}, {&s.InvalidateErrors, &c.InvalidateErrors},
	} {
		*p.to += p.from.Load()
	}
}
