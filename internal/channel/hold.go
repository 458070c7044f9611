package channel

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// holdScript puts a key on hold: package lease gives no lease of it until the hold has ended. It touches the hold alone, by its own name, so that it can be carried out
// while a cluster moves the slot, which may be half done: the key here, the hold there. It need not be one with the delete, if that comes behind it: a lease from before
// the hold is voided by the delete, and after the hold none is given.
//
// It may be repeated: a hold is never made shorter. A full Redis refuses SET, but not in a script that has already written, as DEL does; and if SET fails all the
// same, nothing is left that lives for ever, and the invalidation fails.
// ARGV: for how long, in ms.
var holdScript = conn.NewScript(`
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
  redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
end
return 1`,
	conn.Mutation{Name: mutant.HoldUnset, Old: `redis.call('SET', KEYS[1], '', 'PX', ARGV[1])`, New: ``},
	conn.Mutation{Name: mutant.HoldNeedsMemory, Old: `redis.call('DEL', KEYS[1])`, New: ``},
	conn.Mutation{Name: mutant.HoldShortened, Old: `if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then`, New: `if true then`})

// Hold has each delete put its key on hold for so long: whole milliseconds. It is called before all else, if at all.
func (c *Channel) Hold(lag time.Duration) { c.lag = lag }

// hold prepares the holds of a part's keys.
func (c *Channel) hold(ctx context.Context, p *part) {
	p.holds = nil
	if c.lag == 0 {
		return
	}
	p.holds = make([]redis.Cmder, len(p.names))
	for i, name := range p.names {
		p.holds[i] = script(ctx, "evalsha", holdScript.Hash, keys.Hold(name), []any{c.lag.Milliseconds()})
	}
}

// inFull sends those holds once more whose server does not know the script.
func (c *Channel) inFull(ctx context.Context, p *part) {
	var unknown []redis.Cmder
	for i, hold := range p.holds {
		if conn.Unknown(hold) {
			p.holds[i] = script(ctx, "eval", holdScript.Source, keys.Hold(p.names[i]), []any{c.lag.Milliseconds()})
			unknown = append(unknown, p.holds[i])
		}
	}
	if len(unknown) > 0 {
		c.conn.Process(ctx, unknown)
	}
}
