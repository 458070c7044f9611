package watermillqueue_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
	"github.com/cacheaside/cacheaside/consistency/watermillqueue"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	slots   = 24              // messages that a subscriber of NATS has at once
	ackWait = 2 * time.Second // the time after which push's consumers deliver a message again
)

// natsPublisher asks the server to drop what it has seen already, by UUID.
func natsPublisher(t testing.TB, url string) message.Publisher {
	t.Helper()
	p, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, JetStream: wmnats.JetStreamConfig{TrackMsgId: true}},
		watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pull is a subscriber whose subscriptions each ask for one message at a time, so that a message
// without acknowledgement never blocks the next one. The suite needs that, and Watermill's
// subscriber for NATS cannot do it.
type pull struct {
	conn    *nats.Conn
	js      nats.JetStreamContext
	ackWait time.Duration
	ctx     context.Context
	end     context.CancelFunc
	work    sync.WaitGroup
}

func newPull(t testing.TB, url string, ackWait time.Duration) *pull {
	t.Helper()
	conn, err := nats.Connect(url)
	check(t, err)
	js, err := conn.JetStream()
	check(t, err)
	p := &pull{conn: conn, js: js, ackWait: ackWait}
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

func (p *pull) SubscribeInitialize(topic string) error {
	_, err := p.js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic},
		Retention: nats.WorkQueuePolicy})
	return err
}

func (p *pull) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := p.js.PullSubscribe(topic, "relays", nats.AckWait(p.ackWait), nats.AckExplicit(),
		nats.MaxAckPending(10*slots))
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(p.ctx, cancel)
	p.work.Go(func() {
		defer close(out)
		for ctx.Err() == nil {
			// what comes just when it has ended comes again after ackWait
			fetching, cancel := context.WithTimeout(ctx, time.Hour)
			some, _ := sub.Fetch(1, nats.Context(fetching))
			cancel()
			for _, m := range some {
				p.give(ctx, m, out)
			}
		}
	})
	return out, nil
}

func (p *pull) give(ctx context.Context, m *nats.Msg, out chan<- *message.Message) {
	ctx, cancel := context.WithTimeout(ctx, p.ackWait)
	defer cancel()
	given := message.NewMessageWithContext(ctx, "", m.Data)
	select {
	case out <- given:
	case <-ctx.Done():
		return
	}
	select {
	case <-given.Acked():
		m.AckSync()
	case <-given.Nacked():
		m.Nak()
	case <-ctx.Done():
	}
}

func (p *pull) Close() error {
	p.end()
	p.work.Wait()
	p.conn.Close()
	return nil
}

// drained is a subscriber that Close first drains, as the comment of the package demands.
type drained struct {
	*wmnats.Subscriber
	conn *nats.Conn
}

func (d *drained) Close() error {
	closed := d.conn.StatusChanged(nats.CLOSED)
	if d.conn.Drain() == nil {
		<-closed
	}
	if err := d.Subscriber.Close(); !errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

// push returns a subscriber to whose subscriptions the server sends what they have room for.
// Without ManualAck the client acknowledges also what was held for longer than AckWaitTimeout, and
// it is lost.
func push(t testing.TB, url, topic string) *drained {
	t.Helper()
	conn, err := nats.Connect(url)
	check(t, err)
	createConsumers(t, conn, topic)
	config := wmnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: "relays", SubscribersCount: slots, AckWaitTimeout: ackWait,
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: "relays", SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}
	s, err := wmnats.NewSubscriberWithNatsConn(conn, config, watermill.NopLogger{})
	check(t, err)
	return &drained{s, conn}
}

// createConsumers creates the consumers of both topics of a queue, if they do not exist, as the
// comment of the package demands: a subscription that creates its consumer deletes it at its end.
func createConsumers(t testing.TB, conn *nats.Conn, topic string) {
	t.Helper()
	js, err := conn.JetStream()
	check(t, err)
	for _, topic := range []string{topic, topic + "-later"} {
		_, err := js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}})
		check(t, err)
		_, err = js.AddConsumer(topic, &nats.ConsumerConfig{
			Durable: "relays", DeliverGroup: "relays", DeliverSubject: "relays." + topic,
			AckPolicy: nats.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: slots,
		})
		check(t, err)
	}
}

// open makes a queue that is closed with the test.
func open(
	t testing.TB, p message.Publisher, s message.Subscriber, topic string, subscriptions int,
) *watermillqueue.Queue {
	t.Helper()
	q, err := watermillqueue.New(p, s, topic, &watermillqueue.Options{Subscriptions: subscriptions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.Close()
		p.Close()
	})
	return q
}

func TestNATS(t *testing.T) {
	server := testenv.StartNATS(t)
	queuetest.Run(t, queuetest.Backend{Unordered: true, NoDepth: true, ByDelivery: true, AtOnce: slots,
		New: func(t testing.TB, n int) []consistency.Queue {
			return same(listening(t, open(t, natsPublisher(t, server.URL), newPull(t, server.URL, 10*time.Minute),
				watermill.NewShortUUID(), slots)), n)
		}})
}

// listening waits until a queue has been given something.
func listening(t testing.TB, q *watermillqueue.Queue) *watermillqueue.Queue {
	t.Helper()
	check(t, q.Put(t.Context(), consistency.Item{Key: cacheaside.Key{Loader: "first"}}))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	defer cancel()
	for {
		q.Wait(ctx)
		items, err := q.Claim(ctx, 1, time.Minute)
		check(t, err)
		if len(items) > 0 {
			check(t, q.Done(ctx, items...))
			return q
		}
	}
}

func same(q consistency.Queue, n int) []consistency.Queue {
	return slices.Repeat([]consistency.Queue{q}, n)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
