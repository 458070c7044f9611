package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Ready is a readiness check: it returns nil if a loader of the process would serve reads. In a
// new process it waits for Redis for at most Options.RedisTimeout, and then for the same time until
// announcements of invalidations arrive. It returns an error that wraps
//
//   - ErrRedis and its cause, if Redis is down, and no loader would serve;
//   - ErrClosed, if the cache is closed.
//
// It returns another error while no announcements arrive in a new process, because memory serves
// no reads until then. On a busy machine that can take some seconds. After Ready has returned nil
// once, it checks Redis only if each loader has FailWhenDown, or if there is no loader. While Redis
// is down, Ready returns nil if a loader has LoadWhenDown, or if a loader has StaleWhenDown and
// Ready has returned nil before: a new process has nothing to serve with StaleWhenDown. So an
// outage of Redis does not take a fleet out of service. Watch Stats and BusStats for the state of
// Redis. Without Redis, Ready returns nil unless the cache is closed.
func (c *Cache) Ready(ctx context.Context) error {
	if c.isClosed() {
		return wording.Errorf("cacheaside: not ready: %w", ErrClosed)
	}
	if c.bus == nil {
		return nil
	}
	c.bus.Listen()
	before := c.wasReady.Load()
	if before && c.servesWhileDown(StaleWhenDown) {
		return nil
	}
	switch err := c.checkRedis(ctx); {
	case err != nil && (ctx.Err() != nil || errors.Is(err, conn.ErrWrongClient) || !c.servesWhileDown(LoadWhenDown)):
		return wording.Errorf("cacheaside: not ready: %w", err)
	case err != nil || before:
	default:
		if err := c.awaitAnnouncements(ctx); err != nil {
			return err
		}
	}
	c.wasReady.Store(true)
	return nil
}

// awaitAnnouncements waits until announcements of invalidations arrive for all ranges of keys. It
// returns an error if they do not within Options.RedisTimeout, or before ctx ends.
func (c *Cache) awaitAnnouncements(ctx context.Context) error {
	if c.memory == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.conn.Timeout())
	defer cancel()
	for {
		s := c.busStats()
		if s.Trusted == s.Ranges {
			return nil
		}
		if retry.Sleep(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("cacheaside: not ready: announcements of invalidations arrive for %d of %d ranges of "+
				"keys", s.Trusted, s.Ranges)
		}
	}
}

// servesWhileDown reports whether a loader has the policy most, or one that serves more reads
// while Redis is down. The constants are in descending order.
func (c *Cache) servesWhileDown(most DownPolicy) bool {
	for _, l := range c.all() {
		if l.redisDown <= most {
			return true
		}
	}
	return false
}

// checkRedis requests the loader generations, which memory depends on, from each range of keys in
// Redis.
func (c *Cache) checkRedis(ctx context.Context) error {
	errs := make([]error, c.conn.InUse())
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			if err := c.bus.Confirm(ctx, uint8(r)); err != nil {
				errs[r] = redisError(err)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
