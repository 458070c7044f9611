package cacheaside

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// Stats counts what has happened since the start, in one Loader or in all of a Cache. Its fields
// are read one after the other, so they may differ by what happened meanwhile.
type Stats struct {
	Gets       int64 // calls of Get, and keys of calls of GetMany; not what Warm and Refresh ask for
	MemoryHits int64 // Gets answered from this process's memory
	RedisHits  int64 // rounds of a key answered by an entry in Redis; a round answers all who asked together
	NullHits   int64 // of those two, how many said that there is no such row

	HitsWhileDown int64 // reads that memory has answered by what this process has loaded while Redis was out of reach, within Options.MaxStaleness of the beginning of that load; most are among MemoryHits

	Loads               int64 // rows that a load function was asked for
	LoadCalls           int64 // calls of load functions; a batch load is asked for many rows at once
	LoadErrors          int64 // of those rows, how many failed, ErrNotFound aside
	CompareLoads        int64 // of those rows, how many were loaded to compare a copy with them: for a meter, or LoaderOptions.Shadow
	LoadsLeft           int64 // calls that had not returned at LoadTimeout, and were left running by themselves
	Unavailable         int64 // calls of load functions that were not made, with ErrUnavailable
	Unlocked            int64 // loads whose lock (LoaderOptions.Locker) could not be had, or was lost, or could not be released in time
	BackgroundRefreshes int64 // reloads that were begun in the background, since a value's TTL had passed or was about to
	EarlyRefreshes      int64 // of them, those that were begun while the value was fresh
	Stale               int64 // rounds, and Gets answered from memory, whose value was given out after its TTL, or under StaleWhenDown from memory that was not trusted
	Held                int64 // loads whose result was not stored, since their keys were on hold (Options.ReplicaLag, StrictWrites)
	Unasked             int64 // values that a batch load returned for keys that it was not asked for; they are ignored
	TooLarge            int64 // values that were given out but not stored in Redis, since their encoding is longer than MaxValueBytes
	NotCarried          int64 // values that were given out but not cached, since JSON would change them: see JSON
	TooHeavy            int64 // values that were not kept in memory, since they take more than a quarter of Options.MemoryBytes, or have too many parts to be weighed
	StoredHeld          int64 // values that a write has stored in the place of its hold (consistency.WriteThrough)
	FailedByMark        int64 // rounds that ended with ErrLoadFailed, the database not asked
	BreakersOpen        int64 // of now: 1 if the circuit breaker (LoaderOptions.BreakAt) lets no load through, 0 if it does; in a Cache's Stats, how many do not

	Filtered       int64 // rounds that LoaderOptions.Filter refused: their keys certainly have no row
	FalsePositives int64 // rounds that it let through, and that had no row, by Redis or a load; not Gets that memory has answered, for which it was not asked
	FilterAudits   int64 // of what it refused, rounds for which the database was asked all the same (LoaderOptions.AuditEvery)
	FilterHidden   int64 // of those, how many had a row, which was returned. The first time, the filter is not used until it was rebuilt or knows the key
	FilterErrors   int64 // times that it failed: rounds that it was asked for in vain, which went on without it, and calls of its Admit, of committed, of NotFound and of Hidden

	Waits            int64 // rounds that waited for a load that was not their own
	Refused          int64 // loads whose result was thrown away, since an invalidation came between or the lease was lost
	Unvalidated      int64 // results given out that Redis had not validated, since it was in trouble, after too many refusals, or on hold
	Bypassed         int64 // of those, how many were due to Bypass
	Outdated         int64 // entries found in Redis that an InvalidateAll had ended, or older than this loader's options allow, or of a generation that Redis has forgotten; each counts as a miss
	Undecodable      int64 // entries found in Redis that could not be decoded; each counts as a miss
	RedisErrors      int64 // commands to Redis that failed, also those that no caller was told of
	WriteErrors      int64 // of those, how many were to store, renew or give up something, also what was not sent since Redis was out of reach: values loaded in vain
	RedisDown        int64 // rounds that did not ask Redis since it was out of reach, or were not answered, or refused: what they did tells LoaderOptions.RedisDown
	Abandoned        int64 // rounds that were stopped since all their callers had left
	Invalidated      int64 // keys whose Invalidate or Expire was acknowledged
	InvalidateErrors int64 // keys whose Invalidate or Expire returned an error

	ShadowReads     int64 // calls of Get, and keys of calls of GetMany, that were answered from the database (LoaderOptions.Shadow); Gets and what follows there are those done once more to be compared
	ShadowMisses    int64 // of the latter, those that the caches did not have
	ShadowCompared  int64 // that they had, and that were compared with the row
	ShadowStale     int64 // of them, those that would have been served other than the row was, for half a second or longer
	ShadowUndecided int64 // reads that were to be compared, and were not: too many at once, or loads; failed; or the row, or what the caches had, changed meanwhile

	HoldsLost      int64    // keys that were not on hold any more before their Hold had ended, since Redis has lost its data or was out of reach
	HoldsLeft      int64    // keys that were left on hold for Options.LeaseTTL, by Abandon, or since they could not be released
	RedisOut       int      // of Bus.Ranges, parts of the keys for which Redis is out of reach now, so that reads do what LoaderOptions.RedisDown says
	ObserverPanics int64    // calls of Options.Observer that have panicked
	Bus            BusStats // these five are of the cache, also in the Stats of each of its loaders
}

// HitRatio is the share of reads that were answered by a cache, from 0 to 1: hits of memory and of
// Redis, among these hits and the rows that were loaded for somebody. Reads of a key that were
// answered together by Redis, or by one load, count once; reloads in the background do not count.
// HitRatio is 0 if there were no reads.
func (s Stats) HitRatio() float64 {
	hits := float64(s.MemoryHits + s.RedisHits)
	misses := float64(max(0, s.Loads-s.BackgroundRefreshes-s.CompareLoads))
	if hits == 0 {
		return 0
	}
	return hits / (hits + misses)
}

// BusStats tell how well the process hears what others invalidate.
type BusStats struct {
	Ranges      int   // parts of the keys that are followed by themselves: 1, or 16 on a cluster; 0 without Redis
	Trusted     int   // of them, those whose values in memory may be served now
	Subscribed  bool  // Redis has confirmed the subscription; a process that has not read yet, or has no memory tier, makes none
	Subscribes  int64 // times that it has
	Disconnects int64 // times that a subscription was lost, or could not be made
	Gaps        int64 // times that messages were found to be missing; the memory tier was cleared, of one range, each time
	Lapses      int64 // times that memory was not served since nobody could say whether something was missing, but nothing was
	Heard       int64 // messages of other processes; each tells of one or more keys
	Announced   int64 // messages of this process
	Malformed   int64 // messages that could not be read; those of a newer format clear the memory tier, of one range
	Questions   int64 // of meters that were heard (package meter)
	Unanswered  int64 // of them, those that were not answered: too many, or too late, or Redis has failed
	FailedPolls int64 // times that Redis could not be asked what has been announced

	Delay    time.Duration // from the announcement in Redis until it is heard here: about the mean of the last 16; by polls, so exact to half a round trip
	MaxDelay time.Duration // since the start
}

// addLoader adds the counts of a loader.
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

// addReads adds the counts of reads.
func (s *Stats) addReads(c *fetch.Counters) {
	nulls, hits := c.MemoryNulls.Load(), c.MemoryHits.Sum()
	s.Gets += hits + c.Misses.Load()
	s.MemoryHits += hits
	s.NullHits += c.NullHits.Load() + nulls
	for _, p := range []struct {
		to   *int64
		from *atomic.Int64
	}{
		{&s.RedisHits, &c.RedisHits}, {&s.HitsWhileDown, &c.HitsWhileDown}, {&s.TooLarge, &c.TooLarge}, {&s.NotCarried, &c.NotCarried}, {&s.TooHeavy, &c.TooHeavy}, {&s.StoredHeld, &c.StoredHeld}, {&s.CompareLoads, &c.CompareLoads},
		{&s.FailedByMark, &c.FailedByMark}, {&s.Waits, &c.Waits}, {&s.Refused, &c.Refused}, {&s.Unvalidated, &c.Unvalidated},
		{&s.Bypassed, &c.Bypassed}, {&s.Undecodable, &c.Undecodable}, {&s.Outdated, &c.Outdated}, {&s.RedisErrors, &c.RedisErrors},
		{&s.Unlocked, &c.Unlocked}, {&s.BackgroundRefreshes, &c.BackgroundRefreshes}, {&s.EarlyRefreshes, &c.Early}, {&s.Stale, &c.Stale}, {&s.Held, &c.Held},
		{&s.WriteErrors, &c.WriteErrors}, {&s.RedisDown, &c.RedisDown},
		{&s.Filtered, &c.Filtered}, {&s.FalsePositives, &c.FalsePositives}, {&s.FilterErrors, &c.FilterErrors},
		{&s.FilterAudits, &c.FilterAudits}, {&s.FilterHidden, &c.FilterHidden},
		{&s.Abandoned, &c.Abandoned}, {&s.Invalidated, &c.Invalidated}, {&s.InvalidateErrors, &c.InvalidateErrors},
	} {
		*p.to += p.from.Load()
	}
}
