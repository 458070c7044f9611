package invalidation

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Tell announces bodies, each to be given to the Listeners of other processes, and carries out a
// change of the key of this name before the last of them; in a trip for each, if all is well. The
// changes that the bodies tell of must have been done already: a process that hears of nothing
// missing takes what it reads then to have all of them. Tell ends with ctx, and each trip has the
// time-out of a Delete. If it returns an error it may be repeated.
func (b *Bus) Tell(ctx context.Context, name string, bodies [][]byte, change Change) error {
	for i, body := range bodies {
		p := &part{rng: b.conn.Range(name), job: job{change: change}, body: append([]byte{toldKind}, body...)}
		if i == len(bodies)-1 {
			p.names = []string{name}
		}
		if err := b.tell(ctx, p); err != nil {
			b.Disown() // it may yet come about
			return err
		}
	}
	return nil
}

func (b *Bus) tell(ctx context.Context, p *part) error {
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, tries*b.conn.Timeout())
	defer cancel()
	p.prepare(ctx, false)
	p.announced = conn.NotReturned(nil) // until it has
	err := b.conn.Await(ctx, func(ctx context.Context) { b.send(ctx, p) })
	if err == nil {
		b.refused(caller, p)
		err = p.announced
		if err == nil && len(p.names) > 0 {
			err = p.failed(0)
		}
	}
	return b.conn.Explain(caller, err, invalidation, b.keys[p.rng], began)
}

// AnnounceLua announces in a script: KEYS[1] and its first four arguments are those that TellBy has
// for it. It does what announceScript does, but that it has written before: so a full server lets
// it.
const AnnounceLua = `
local t, number = redis.call('TIME'), redis.call('HGET', KEYS[1], '') or '0'
local now, before = t[1] * 1000000 + t[2], tonumber(number) or 0
if not (before >= 1 and before <= 4503599627370496) then before = 0 end
if now <= before then now = before + ARGV[4] end
now, before = string.format('%.0f', now), string.format('%.0f', before)
redis.call('HSET', KEYS[1], '', now)
redis.call('PUBLISH', ARGV[1], ARGV[2] .. before .. ' ' .. now .. ' ' .. ARGV[3])
`

// TellBy is Tell of one body by a script of the caller's, which announces it by AnnounceLua behind
// its change: run is given what that takes, and sends it. It is for what is on one server.
func (b *Bus) TellBy(name string, body []byte, run func(key string, args []any) error) error {
	rng := b.conn.Range(name)
	args := b.announcement(rng, append([]byte{toldKind}, body...), "")
	err := run(b.keys[rng], append(args[:3:3], args[4]))
	if err != nil {
		b.Disown() // it may yet come about
		return err
	}
	b.counts.announced.Add(1)
	return nil
}
