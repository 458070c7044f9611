package invalidation

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// listen subscribes, again and again, until the bus is closed.
func (c *Bus) listen() {
	longest := c.bound / pollsInBound
	pause := longest / 64
	for c.ctx.Err() == nil {
		began := time.Now()
		err := c.subscribe()
		c.lost()
		if c.ctx.Err() != nil {
			return
		}
		c.counts.disconnects.Add(1)
		c.told("invalidations are not heard: the subscription is lost, or cannot be made", err)
		if time.Since(began) > longest {
			pause = longest / 64
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-wait.C:
		case <-c.ctx.Done():
			wait.Stop()
			return
		}
		pause = min(2*pause, longest)
	}
}

// subscribe listens by one subscription, until it is lost. A pub/sub connection that go-redis has
// made anew by itself, by a dialer that does not heed its context, has a gap, and says so only by a
// second confirmation: then it is another session.
func (c *Bus) subscribe() error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	client, err := c.conn.Subscriber(ctx, strconv.FormatUint(rand.Uint64(), 36)) // on a cluster each process by another server, and another one the next time
	if err != nil {
		return err
	}
	sub := client.Subscribe(ctx)
	closing := sync.OnceFunc(func() {
		cancel()
		end := func() { sub.Close() } //nolint:errcheck // nothing is to be done about it
		if !c.conn.Apart(end) {       // it waits for a connection that is being made
			end()
		}
	})
	defer closing()
	defer context.AfterFunc(c.ctx, closing)()
	if err := c.ask(ctx, sub); err != nil {
		return err
	}
	once, end := context.WithCancel(ctx)
	end() // by it go-redis cannot dial: it would make a connection anew, for as long as that takes, before it says that the one before is lost
	stop := c.keepHearing(once, sub)
	defer stop()
	session := uint64(0)
	for {
		got, err := sub.ReceiveTimeout(once, c.bound)
		if err != nil {
			return err // also a time-out: the next reply might begin in the middle of one
		}
		switch m := got.(type) {
		case *redis.Subscription:
			session = c.counts.session()
			c.hearing.Store(&subscription{session, closing})
			c.subscribed(session)
		case *redis.Message:
			c.received(session, m.Payload)
		}
	}
}

// ask asks for the subscription. A connection that is being made heeds the client's own time-outs
// only, if there are any.
func (c *Bus) ask(ctx context.Context, sub *redis.PubSub) error {
	ctx, cancel := context.WithTimeout(ctx, c.conn.Timeout())
	defer cancel()
	asked := conn.NotReturned(nil) // until it has
	if err := c.conn.Await(ctx, func(ctx context.Context) { asked = sub.Subscribe(ctx, c.topic) }); err != nil {
		return err
	}
	return asked
}

// keepHearing makes something come by the subscription at all times, so that silence means that it
// is lost: a connection that a firewall has forgotten looks like one by which nothing is announced.
func (c *Bus) keepHearing(once context.Context, sub *redis.PubSub) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(once))
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(c.bound / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				sub.Ping(once) //nolint:errcheck // then nothing comes back
			}
		}
	}()
	return func() {
		cancel()
		sub.Close() //nolint:errcheck // so that a ping under way ends
		<-done
	}
}

// subscribed begins a session on all ranges, and has them polled at once: until then nothing is
// trusted.
func (c *Bus) subscribed(session uint64) {
	for r := range c.conn.InUse() {
		c.tracks[r].subscribed(session)
		select {
		case c.pollers[r].kick <- struct{}{}:
		default:
		}
	}
}

func (c *Bus) lost() {
	for r := range c.conn.InUse() {
		c.tracks[r].lost()
	}
}

// received applies a message, and then takes its place in the chain.
func (c *Bus) received(session uint64, payload string) {
	if isQuestion(payload) {
		c.question(payload)
		return
	}
	m, err := Decode([]byte(payload))
	if err != nil || m.Range >= c.conn.InUse() {
		c.unplaced(payload, &m)
		return
	}
	own := m.Origin == c.origin.Load()
	listener, listens := c.memory.(Listener)
	switch {
	case m.Kind == 0, m.Kind == toldKind && !listens:
		c.counts.malformed.Add(1)
		c.memory.Void(m.Range)
	case m.Kind == loaderKind:
		if c.loaders.heard(string(m.Body), m.Range, m.Number) {
			c.pollers[m.Range].doubt()
		}
	case own:
	case m.Kind == toldKind:
		listener.Told(m.Body)
	default:
		m.Each(c.memory.Forget)
	}
	if !own {
		c.counts.heard(m.Range, m.Number)
	}
	c.tracks[m.Range].received(session, link{m.Previous, m.Number})
}

// unplaced is for a message that cannot be read, or is of a range that there is not: a process with
// a client of another kind divides keys otherwise. Nobody polls for the number of such a range, and
// any range of ours may have its keys. A message that is no announcement concerns none; were it one
// after all, the next poll would find it missing.
func (c *Bus) unplaced(payload string, m *Message) {
	c.counts.malformed.Add(1)
	if !isAnnouncement(payload) {
		c.told("a message on the invalidation bus cannot be read", nil)
		return
	}
	c.told("an invalidation is of a range of keys that is not known: memory is not trusted until Redis has confirmed it; do programs use clients of several kinds (redis.Client, redis.ClusterClient) on this Redis?", nil)
	m.Each(c.memory.Forget) // if it could be read
	for r := range c.conn.InUse() {
		c.tracks[r].doubt()
	}
	c.conn.Doubt()
}
