package consistency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// errForeign is why an item is left to others.
var errForeign = errors.New("no relay here has this loader, and its filter may need a new row")

// foreign returns why an item is left to the Relay of a process that has the loader, and so its
// filter, or nil if this Relay can do the item.
func (s *shift) foreign(item *Item) error {
	if !item.Admit || item.Key.All || item.Key.Check() != nil {
		return nil
	}
	if has, _ := s.cache.Loader(item.Key.Loader); has {
		return nil
	}
	return fmt.Errorf("loader %s: %w", item.Key.Loader, errForeign)
}

// foreignPace limits how many items that are for other relays become due in a second: 200. It is a
// small part of what a relay can do, so that they do not keep what it can do waiting.
const (
	foreignPace    = 5 * time.Millisecond
	longestForeign = 10 * time.Minute // reached with 120,000 such items
	foreignAlertAt = 10 * time.Second // reached with 2,000
)

// unknown returns such an item with its next due time: soon, so that another Relay gets it; later
// if no relay has done it for long; and no sooner than foreignPace permits, so the more such items
// there are, the longer each of them waits. It alerts when an item has come back AlertAt times, or
// when there are so many that most have to wait for long.
func (s *shift) unknown(ctx context.Context, item Item, why error) Item {
	s.counters.unknown.Add(1)
	item.Attempts++
	now := time.Now()
	if s.nextForeign.Before(now) {
		s.nextForeign = now
	}
	paced := min(s.nextForeign.Sub(now), longestForeign)
	s.nextForeign = now.Add(paced + foreignPace)
	item.After = max(foreignDelay(item.Attempts-s.options.AlertAt), paced)
	if item.Attempts >= s.options.AlertAt || paced >= foreignAlertAt {
		s.alert(ctx, &s.strange, "loader "+item.Key.Loader, item.Attempts, why)
	}
	return item
}

// foreignDelay returns up to longestProbe, and up to longestDelay after many attempts since the
// alert.
func foreignDelay(alerted int) time.Duration {
	d := longestProbe
	if alerted > 0 {
		d = min(longestDelay, longestProbe<<min(alerted, 10))
	}
	return d/2 + rand.N(d/2+1)
}
