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
func (b *Bus) listen() {
	longest := b.bound / pollsInBound
	pause := longest / 64
	for b.ctx.Err() == nil {
		began := time.Now()
		err := b.subscribe()
		b.lost()
		if b.ctx.Err() != nil {
			return
		}
		b.counts.disconnects.Add(1)
		b.told("invalidations are not heard: the subscription is lost, or cannot be made", err)
		if time.Since(began) > longest {
			pause = longest / 64
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-wait.C:
		case <-b.ctx.Done():
			wait.Stop()
			return
		}
		pause = min(2*pause, longest)
	}
}

// subscribe listens by one subscription, until it is lost. A pub/sub connection that go-redis has
// made anew by itself, by a dialer that does not heed its context, has a gap, and says so only by a
// second confirmation: then it is another session.
func (b *Bus) subscribe() error {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	client, err := b.conn.Subscriber(ctx, strconv.FormatUint(rand.Uint64(), 36)) // on a cluster each process by another server, and another one the next time
	if err != nil {
		return err
	}
	sub := client.Subscribe(ctx)
	closing := sync.OnceFunc(func() {
		cancel()
		end := func() { sub.Close() } //nolint:errcheck // nothing is to be done about it
		if !b.conn.Apart(end) {       // it waits for a connection that is being made
			end()
		}
	})
	defer closing()
	defer context.AfterFunc(b.ctx, closing)()
	if err := b.ask(ctx, sub); err != nil {
		return err
	}
	once, end := context.WithCancel(ctx)
	end() // by it go-redis cannot dial: it would make a connection anew, for as long as that takes, before it says that the one before is lost
	stop := b.keepHearing(once, sub)
	defer stop()
	session := uint64(0)
	for {
		got, err := sub.ReceiveTimeout(once, b.bound)
		if err != nil {
			return err // also a time-out: the next reply might begin in the middle of one
		}
		switch m := got.(type) {
		case *redis.Subscription:
			session = b.counts.session()
			b.hearing.Store(&subscription{session, closing})
			b.subscribed(session)
		case *redis.Message:
			b.received(session, m.Payload)
		}
	}
}

// ask asks for the subscription. A connection that is being made heeds the client's own time-outs
// only, if there are any.
func (b *Bus) ask(ctx context.Context, sub *redis.PubSub) error {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	asked := conn.NotReturned(nil) // until it has
	if err := b.conn.Await(ctx, func(ctx context.Context) { asked = sub.Subscribe(ctx, b.topic) }); err != nil {
		return err
	}
	return asked
}

// keepHearing makes something come by the subscription at all times, so that silence means that it
// is lost: a connection that a firewall has forgotten looks like one by which nothing is announced.
func (b *Bus) keepHearing(once context.Context, sub *redis.PubSub) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(once))
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(b.bound / 3)
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
func (b *Bus) subscribed(session uint64) {
	for r := range b.conn.InUse() {
		b.tracks[r].subscribed(session)
		select {
		case b.pollers[r].kick <- struct{}{}:
		default:
		}
	}
}

func (b *Bus) lost() {
	for r := range b.conn.InUse() {
		b.tracks[r].lost()
	}
}

// received applies a message, and then takes its place in the chain.
func (b *Bus) received(session uint64, payload string) {
	if isQuestion(payload) {
		b.question(payload)
		return
	}
	m, err := Decode([]byte(payload))
	if err != nil || m.Range >= b.conn.InUse() {
		b.unplaced(payload, &m)
		return
	}
	own := m.Origin == b.origin.Load()
	listener, listens := b.memory.(Listener)
	switch {
	case m.Kind == 0, m.Kind == toldKind && !listens:
		b.counts.malformed.Add(1)
		b.memory.Void(m.Range)
	case m.Kind == loaderKind:
		if b.loaders.heard(string(m.Body), m.Range, m.Number) {
			b.pollers[m.Range].doubt()
		}
	case own:
	case m.Kind == toldKind:
		listener.Told(m.Body)
	default:
		m.Each(b.memory.Forget)
	}
	if !own {
		b.counts.heard(m.Range, m.Number)
	}
	b.tracks[m.Range].received(session, link{m.Previous, m.Number})
}

// unplaced is for a message that cannot be read, or is of a range that there is not: a process with
// a client of another kind divides keys otherwise. Nobody polls for the number of such a range, and
// any range of ours may have its keys. A message that is no announcement concerns none; were it one
// after all, the next poll would find it missing.
func (b *Bus) unplaced(payload string, m *Message) {
	b.counts.malformed.Add(1)
	if !isAnnouncement(payload) {
		b.told("a message on the invalidation bus cannot be read", nil)
		return
	}
	b.told("an invalidation is of a range of keys that is not known: memory is not trusted until Redis has confirmed it; do programs use clients of several kinds (redis.Client, redis.ClusterClient) on this Redis?", nil)
	m.Each(b.memory.Forget) // if it could be read
	for r := range b.conn.InUse() {
		b.tracks[r].doubt()
	}
	b.conn.Doubt()
}
