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

// foreign tells why an item is for a Relay of another process: that has the loader, and so its
// filter, and this one has not. nil: it is not.
func (s *shift) foreign(item *Item) error {
	if !item.Admit || item.Key.All || item.Key.Check() != nil {
		return nil
	}
	if has, _ := s.cache.Loader(item.Key.Loader); has {
		return nil
	}
	return fmt.Errorf("loader %s: %w", item.Key.Loader, errForeign)
}

// unknown says when such an item is claimed again: soon, so that another Relay gets it, and more
// rarely when none has for long.
func (s *shift) unknown(ctx context.Context, item Item, why error) Item {
	s.counters.unknown.Add(1)
	item.Attempts++
	item.After = foreignDelay(item.Attempts - s.options.AlertAt)
	if item.Attempts >= s.options.AlertAt {
		s.alert(ctx, &s.strange, "loader "+item.Key.Loader, item.Attempts, why)
	}
	return item
}

// foreignDelay is at most longestProbe, and longestDelay in the end.
func foreignDelay(alerted int) time.Duration {
	d := longestProbe
	if alerted > 0 {
		d = min(longestDelay, longestProbe<<min(alerted, 10))
	}
	return d/2 + rand.N(d/2+1)
}
