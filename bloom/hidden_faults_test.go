package bloom

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// disturb does harm until it is done.
func (p *play) disturb(r *rand.Rand, done func() bool) {
	type fault struct {
		name string
		do   func(*rand.Rand)
	}
	destroying := []fault{
		{"flushed", p.flushAll},
		{"segments deleted", p.deleteSegments},
		{"descriptor deleted", p.deleteDescriptor},
		{"server restarted", p.restart},
	}
	others := []fault{
		{"subscriptions killed", func(*rand.Rand) { p.killClients("pubsub") }},
		{"connections killed", func(*rand.Rand) { p.killClients("normal") }},
		{"server stopped", p.stopServer},
		{"reader stopped", func(r *rand.Rand) { p.stopChild(r, 2, time.Second) }},
		{"writer stopped", func(r *rand.Rand) { p.stopChild(r, 0, time.Second/2) }},
		{"rebuilder stopped", func(r *rand.Rand) { p.stopChild(r, 4, time.Second/2) }},
		{"rebuilder killed", p.killRebuilder},
		{"lock deleted", p.deleteLock},
	}
	var deck []fault // each comes within some seconds
	for !done() {
		if len(deck) == 0 {
			deck = slices.Concat(destroying, others, others)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		p.sleep(done, 50*time.Millisecond+time.Duration(r.Int64N(int64(120*time.Millisecond)))<<r.IntN(4))
		f := deck[0]
		deck = deck[1:]
		p.note(f.name)
		f.do(r)
		p.faults[f.name]++
	}
}

func (p *play) sleep(done func() bool, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !done(); {
		time.Sleep(5 * time.Millisecond)
	}
}

// each does something to all servers, or to one of them.
func (p *play) each(do func(ctx context.Context, c *redis.Client)) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, s := range p.servers {
		o := s.Options()
		o.MaxRetries = -1
		c := redis.NewClient(o)
		do(ctx, c)
		c.Close()
	}
}

// flushAll empties all servers, or one.
func (p *play) flushAll(r *rand.Rand) {
	one := r.IntN(2 * len(p.servers))
	i := 0
	p.each(func(ctx context.Context, c *redis.Client) {
		if one >= len(p.servers) || one == i {
			c.FlushAll(ctx)
		}
		i++
	})
}

// deleteSegments evicts some segments of any generation.
func (p *play) deleteSegments(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	raw, err := p.rdb.Get(ctx, "cacheaside::bloom:{users}").Result()
	if err != nil {
		return
	}
	d, err := decodeDescriptor(raw)
	if err != nil {
		return
	}
	for _, g := range d.generations() {
		if r.IntN(2) == 0 {
			p.rdb.Del(ctx, segmentKey("cacheaside", "users", g.ID, r.Uint64N(g.Segments)))
		}
	}
}

func (p *play) deleteDescriptor(*rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	p.rdb.Del(ctx, "cacheaside::bloom:{users}")
}

func (p *play) killClients(kind string) {
	p.each(func(ctx context.Context, c *redis.Client) { c.Do(ctx, "client", "kill", "type", kind, "skipme", "yes") })
}

// restart kills a server. What it has acknowledged it keeps, or else all is gone.
func (p *play) restart(r *rand.Rand) {
	s := p.servers[r.IntN(len(p.servers))]
	s.Kill()
	time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
	s.Restart(p.t)
}

func (p *play) stopServer(r *rand.Rand) {
	s := p.servers[r.IntN(len(p.servers))]
	s.Pause()
	time.Sleep(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
	s.Resume()
}

// stopChild suspends one of two children.
func (p *play) stopChild(r *rand.Rand, first int, atMost time.Duration) {
	c := p.children[first+r.IntN(2)]
	c.Pause()
	time.Sleep(time.Duration(r.Int64N(int64(atMost))))
	c.Resume()
}

func (p *play) killRebuilder(r *rand.Rand) {
	at := 4 + r.IntN(2)
	p.children[at].Kill()
	p.children[at] = p.spawn("rebuilder")
	p.deleteLock(r) // or else nothing is rebuilt for long
}

func (p *play) deleteLock(*rand.Rand) {
	p.each(func(ctx context.Context, c *redis.Client) {
		for keys := c.Scan(ctx, 0, "*bloom-rebuild*", 10_000).Iterator(); keys.Next(ctx); {
			c.Del(ctx, keys.Val())
		}
	})
}
