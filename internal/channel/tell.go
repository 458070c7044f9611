package channel

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Tell announces bodies, each to be given to the Listeners of other processes, and carries out a change of the key of this name before the last of them; in a trip for each, if all is well. What the bodies tell of must
// have been done already: who hears of nothing missing takes what he reads then to have all of it. It ends with ctx, and each trip has the time-out of a Delete. If it returns an error it may be repeated.
func (c *Channel) Tell(ctx context.Context, name string, bodies [][]byte, change Change) error {
	for i, body := range bodies {
		p := &part{rng: c.conn.Range(name), job: job{change: change}, body: append([]byte{toldKind}, body...)}
		if i == len(bodies)-1 {
			p.names = []string{name}
		}
		if err := c.tell(ctx, p); err != nil {
			c.Disown() // it may yet come about
			return err
		}
	}
	return nil
}

func (c *Channel) tell(ctx context.Context, p *part) error {
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, tries*c.conn.Timeout())
	defer cancel()
	p.prepare(ctx)
	p.announced = conn.NotReturned(nil) // until it has
	err := c.conn.Await(ctx, func() { c.send(ctx, p) })
	if err == nil {
		err = p.announced
		if err == nil && len(p.names) > 0 {
			err = p.failed(0)
		}
	}
	return c.conn.Explain(caller, err, invalidation, c.keys[p.rng], began)
}
