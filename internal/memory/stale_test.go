package memory

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// While Redis is unreachable, an item outlives its expiry and every uncertainty, but not an
// invalidation that was received.
func TestGetStale(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(*Tier)
		stays bool
	}{
		"nothing":           {func(*Tier) {}, true},
		"lost trust":        {func(tier *Tier) { tier.Trust(0, time.Time{}) }, true},
		"a doubt":           {func(tier *Tier) { tier.Clear(0) }, true},
		"its end":           {func(*Tier) { time.Sleep(time.Minute + time.Second) }, true},
		"its hard end":      {func(*Tier) { time.Sleep(2 * time.Minute) }, false},
		"an invalidation":   {func(tier *Tier) { tier.Forget(1001) }, false},
		"of what, unknown":  {func(tier *Tier) { tier.Void(0) }, false},
		"doubt, then known": {func(tier *Tier) { tier.Clear(0); tier.Forget(1001) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier := newTier(t, 1<<20)
				set(t, tier, 1, "a", 7, time.Minute)
				c.do(tier)
				item, ago, ok := tier.GetStale(1, &noEras)
				ok = ok && ago < time.Minute
				if ok != c.stays || ok && ItemOf[string, int](item).Value != 7 {
					t.Errorf("%v", ok)
				}
			})
		})
	}
}

// What was read before an invalidation, or a clear, and Set after it is not given out.
func TestGetStaleOfALateItem(t *testing.T) {
	for name, end := range map[string]func(*Tier){
		"forget": func(tier *Tier) { tier.Forget(2) },
		"clear":  func(tier *Tier) { tier.Clear(0) },
		"void":   func(tier *Tier) { tier.Void(0) },
	} {
		tier := newTier(t, 1<<20)
		item := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2)}, Key: "a"}
		end(tier)
		put(tier, 1, item, 8, time.Minute, time.Minute)
		tier.Wait()
		if _, _, ok := tier.GetStale(1, &noEras); ok {
			t.Errorf("%s: it is given out", name)
		}
	}
}

// The TTL of an entry in Redis can have ended longer ago than the process has been running.
func TestTTLThatEndedBeforeTheStart(t *testing.T) {
	tier := newTier(t, 1<<20)
	item := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2)}, Key: "a"}
	put(tier, 1, item, 8, time.Minute, -time.Hour)
	tier.Wait()
	got, now, ok := Get[string, int](tier, 1, &noEras, "a")
	if !ok || tier.Left(&got.Header) > -time.Hour || !got.Near(now) {
		t.Errorf("found: %v, its TTL ends in %v", ok, tier.Left(&item.Header))
	}
	again := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2)}, Key: "a"}
	put(tier, 1, again, 8, math.MaxInt64, math.MaxInt64)
	if left := tier.Left(&again.Header); left < math.MaxInt64/2 {
		t.Errorf("a TTL without an end ends in %v", left)
	}
}
