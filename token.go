package cacheaside

import (
	"context"
	"strings"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/invalidation"
)

// A Token identifies invalidations, so that another process can read what was written before them:
// see After. It is short, and fits into a cookie or a header. The zero value identifies none.
type Token string

// Collect returns a context, and a function that returns the Token of all invalidations that have
// succeeded with that context so far. These are Invalidate, InvalidateAll, InvalidateGroup, their
// Expire variants, InvalidateKeys, and the writes of a consistency.Writer with that context. Not
// included are keys that a Writer has left to its queue: at the level Async, or because Redis was
// down. The function is safe for concurrent use. In a cache without Redis the Token is always
// empty. If the invalidations belong to several caches, reads after the Token are like Fresh.
//
// If ctx comes from another Collect, that one collects the same invalidations too.
func Collect(ctx context.Context) (context.Context, func() Token) {
	ctx, c := invalidation.Collect(ctx)
	return ctx, func() Token { return Token(c.Token()) }
}

// After makes a read observe the invalidations that a Token identifies. Use it to show users what
// they have just written, if another process serves their next request. An invalidation reaches
// other processes within some milliseconds. Once this process has received it, the read may use
// memory. Until then it is a read with Fresh: it costs a round trip to Redis (two after an
// InvalidateAll), and does not wait for the invalidation. After an Expire it may return the stale
// value, like other reads.
//
// A process remembers the last 1,024 invalidations that it has received (on a cluster in each of 16
// ranges of keys); reads after older ones are like Fresh. After Options.MaxStaleness a Token is not
// needed any more: give its cookie that life. A Token that is empty changes nothing. A Token that
// is malformed, or from a cache with another Prefix, is no error: the read is like Fresh. In a
// cache without Redis each Token changes nothing. So a Token may come from a client.
func After(t Token) ReadOption {
	if t == "" {
		return ""
	}
	return ReadOption(afterToken + t)
}

const afterToken = "after "

// reads reports whether a read with options may use memory, and returns the mode of its trip to
// Redis.
func (c *Cache) reads(options []ReadOption) (remembered bool, mode fetch.Mode) {
	remembered, mode = true, fetch.Plain
	for _, o := range options {
		token, after := strings.CutPrefix(string(o), afterToken)
		if o == "" || after && c.bus == nil {
			continue
		}
		remembered = after && c.bus.MayUseMemory(token) && remembered // each token counts
		mode = fetch.Fresh
	}
	return remembered, mode
}
