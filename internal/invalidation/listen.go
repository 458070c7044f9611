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

// listen subscribes repeatedly until the bus is closed.
func (b *Bus) listen() {
	longest := b.bound / pollsInBound
	pause := longest / 64
	for b.ctx.Err() == nil {
		began := time.Now()
		err := b.subscribe()
		b.unsubscribed()
		if b.ctx.Err() != nil {
			return
		}
		b.counts.disconnects.Add(1)
		b.report("invalidations are not received: the subscription has failed", err)
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

// subscribe receives by one subscription until it fails. If go-redis reconnects on its own, with a
// dialer that ignores its context, messages may be lost, and only a second confirmation of the
// subscription reveals this. Each confirmation begins a new session.
func (b *Bus) subscribe() error {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	client, err := b.conn.Subscriber(ctx, strconv.FormatUint(rand.Uint64(), 36)) // on a cluster, a random server
	if err != nil {
		return err
	}
	sub := client.Subscribe(ctx)
	closing := sync.OnceFunc(func() {
		cancel()
		end := func() { sub.Close() } //nolint:errcheck // the subscription is not used again
		if !b.conn.Apart(end) {       // Close waits for a connection that is being made
			end()
		}
	})
	defer closing()
	defer context.AfterFunc(b.ctx, closing)()
	if err := b.requestSubscription(ctx, sub); err != nil {
		return err
	}
	once, end := context.WithCancel(ctx)
	end() // with an ended context go-redis cannot dial; otherwise it would reconnect before it reports the loss
	stop := b.keepAlive(once, sub)
	defer stop()
	session := uint64(0)
	for {
		got, err := sub.ReceiveTimeout(once, b.bound)
		if err != nil {
			return err // also after a time-out: the next read might begin in the middle of a reply
		}
		switch m := got.(type) {
		case *redis.Subscription:
			session = b.counts.session()
			b.subscription.Store(&subscription{session, closing})
			b.subscribed(session)
		case *redis.Message:
			b.received(session, m.Payload)
		}
	}
}

// requestSubscription subscribes to the topic. While go-redis connects, only the client's own
// time-outs apply, if it has any.
func (b *Bus) requestSubscription(ctx context.Context, sub *redis.PubSub) error {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	asked := conn.NotReturned(nil) // until it has
	if err := b.conn.Await(ctx, func(ctx context.Context) { asked = sub.Subscribe(ctx, b.topic) }); err != nil {
		return err
	}
	return asked
}

// keepAlive sends pings, so that replies arrive even if nothing is announced. Silence then means
// that the connection is lost, for example in a firewall.
func (b *Bus) keepAlive(once context.Context, sub *redis.PubSub) (stop func()) {
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
				sub.Ping(once) //nolint:errcheck // if it fails, no reply arrives
			}
		}
	}()
	return func() {
		cancel()
		sub.Close() //nolint:errcheck // ends a ping in progress; the subscription is not used again
		<-done
	}
}

// subscribed begins a session in all ranges and polls them immediately. Nothing is trusted before
// the replies.
func (b *Bus) subscribed(session uint64) {
	for r := range b.conn.InUse() {
		b.tracks[r].subscribed(session)
		select {
		case b.pollers[r].kick <- struct{}{}:
		default:
		}
	}
}

func (b *Bus) unsubscribed() {
	for r := range b.conn.InUse() {
		b.tracks[r].unsubscribed()
	}
}

// received applies a message, and then records its number.
func (b *Bus) received(session uint64, payload string) {
	if isQuestion(payload) {
		if !b.receiveEnds(payload) {
			b.receiveQuestion(payload)
		}
		return
	}
	m, err := Decode([]byte(payload))
	if err != nil || m.Range >= b.conn.InUse() {
		b.receiveUnknown(payload, &m)
		return
	}
	for part := range m.Parts() {
		b.receive(session, part)
	}
}

// receive applies an announcement.
func (b *Bus) receive(session uint64, m *Message) {
	sentHere := m.Origin == b.origin.Load()
	listener, ok := b.memory.(Listener)
	switch {
	case m.Kind == 0, m.Kind == bodyKind && !ok:
		b.counts.malformed.Add(1)
		b.memory.Void(m.Range)
	case m.Kind == loaderKind:
		if b.loaders.received(string(m.Body), m.Range, m.Number) {
			b.pollers[m.Range].unconfirm()
		}
	case sentHere:
	case m.Kind == groupKind:
		b.receivedGroups(m)
	case m.Kind == bodyKind:
		listener.Received(m.Body)
	default:
		m.Each(b.memory.Forget)
		m.Each(b.loadEnded)
	}
	if !sentHere {
		b.countReceived(m.Range, m.Number)
	}
	b.tracks[m.Range].received(session, position{m.Previous, m.Number})
}

// receiveUnknown handles a message that cannot be read, or that names an unknown range because a
// process with another kind of client divides keys differently. This process does not poll the
// number of such a range, and the keys may be in any of its own ranges. A message that does not
// look like an announcement changes nothing: if it was a damaged one, the next poll detects that
// an announcement is missing.
func (b *Bus) receiveUnknown(payload string, m *Message) {
	b.counts.malformed.Add(1)
	if !isAnnouncement(payload) {
		b.report("a message on the invalidation bus cannot be read", nil)
		return
	}
	b.report("an invalidation names an unknown range of keys: memory is not used until the next poll of Redis; do "+
		"programs use clients of different kinds (redis.Client, redis.ClusterClient) with this Redis?", nil)
	for part := range m.Parts() {
		part.Each(b.memory.Forget) // if it could be read
	}
	for r := range b.conn.InUse() {
		b.tracks[r].distrust()
	}
	b.conn.Doubt()
}
