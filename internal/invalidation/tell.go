package invalidation

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// AnnounceBodies announces bodies to the Listeners of other processes. Before the last
// announcement it executes a change of the key of this name. Each announcement normally takes one
// trip. The caller must have made the changes that the bodies describe: a process that has
// received all announcements assumes that its next read includes these changes. AnnounceBodies
// ends with ctx, and each trip has the time-out of a Delete. After an error it may be repeated.
func (b *Bus) AnnounceBodies(ctx context.Context, name string, bodies [][]byte, change Change) error {
	for i, body := range bodies {
		p := &part{rng: b.conn.Range(name), job: job{change: change}, body: append([]byte{bodyKind}, body...)}
		if i == len(bodies)-1 {
			p.names = []string{name}
		}
		if err := b.announceBody(ctx, p); err != nil {
			b.Disown() // Redis may still execute it
			return err
		}
	}
	return nil
}

func (b *Bus) announceBody(ctx context.Context, p *part) error {
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	p.prepare(ctx, false)
	p.announced = conn.NotReturned(nil) // until it has
	err := b.conn.Await(ctx, func(ctx context.Context) { b.send(ctx, p) })
	if err == nil {
		b.reportRefused(caller, p)
		err = p.announced
		if err == nil && len(p.names) > 0 {
			err = p.keyErr(0)
		}
	}
	return b.conn.Explain(caller, err, operation, b.keys[p.rng], began)
}

// AnnounceLua announces within a caller's script. KEYS[1] and the first four arguments are those
// that AnnounceBy passes to run. AnnounceLua is like announceScript for a body, but requires that
// the script has written before, so that a full server accepts it.
var AnnounceLua = `
local t, number = redis.call('TIME'), redis.call('HGET', KEYS[1], '') or '0'
local now, before = t[1] * 1000000 + t[2], tonumber(number) or 0
if not (before >= 1 and before <= 4503599627370496) then before = 0 end
` + gather + `
number = string.format('%.0f', now > before and now or before + ARGV[4])
before = string.format('%.0f', before)
redis.call('HSET', KEYS[1], '', number)
announce(ARGV[1], ARGV[2], before, number, ARGV[3], false)
`

// AnnounceBy is like AnnounceBodies with one body, by a script of the caller that ends with
// AnnounceLua. run receives the key and the arguments, and sends the script. AnnounceBy requires
// that all keys are on one server.
func (b *Bus) AnnounceBy(name string, body []byte, run func(key string, args []any) error) error {
	rng := b.conn.Range(name)
	args := b.announcement(rng, append([]byte{bodyKind}, body...), "")
	err := run(b.keys[rng], append(args[:3:3], args[4]))
	if err != nil {
		b.Disown() // Redis may still execute it
		return err
	}
	b.counts.announced.Add(1)
	return nil
}
