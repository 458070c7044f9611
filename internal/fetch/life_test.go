package fetch

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// TestClaimsDoNotExtendLives looks at entries near the end of their lives, with and without a
// claim. A claim keeps the key in Redis, and its value must not be served for longer.
func TestClaimsDoNotExtendLives(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	live, over := uint32(now.Add(time.Second).UnixMilli()), uint32(now.Add(-time.Second).UnixMilli())
	for _, c := range []struct {
		name     string
		staleFor time.Duration
		age      time.Duration // since the end of the TTL
		claimed  bool
		ends     uint32
		failed   bool
		want     finding
	}{
		{"within the TTL", -1, -time.Millisecond, true, live, false, foundFresh},
		{"past the TTL, no stale life", -1, time.Millisecond, true, live, false, foundTooOld},
		{"the same, the claim is over", -1, time.Millisecond, true, over, false, foundTooOld},
		{"the same, the refresh has failed", -1, time.Millisecond, true, live, true, foundTooOld},
		{"the same, not claimed: Redis is about to delete it", -1, time.Millisecond, false, 0, false, foundFresh},
		{"within a short stale life", time.Second, 999 * time.Millisecond, true, live, false, foundStale},
		{"the same, the refresh has failed", time.Second, 999 * time.Millisecond, true, live, true, foundFailing},
		{"past a short stale life", time.Second, time.Second, true, live, false, foundTooOld},
		{"long past it", time.Second, time.Minute, true, live, false, foundTooOld},
		{"past it, not claimed", time.Second, time.Minute, false, 0, false, foundTooOld},
	} {
		f := &Fetcher{Options: Options{StaleFor: c.staleFor, NullTTL: time.Hour}}
		e := &lease.Entry{Claimed: c.claimed, ClaimEnds: c.ends, Expiry: now.Add(-c.age), Stamp: lease.Token{1}}
		if c.failed {
			e.Stamp = lease.Token{}
		}
		if got := f.classifyAge(e, now); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
