package watermillsource_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

func natsPublisher(t testing.TB, url string) message.Publisher {
	t.Helper()
	p, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, JetStream: wmnats.JetStreamConfig{AutoProvision: true}}, watermill.NopLogger{})
	check(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// natsSubscriber shares a durable subscription. At most so many messages are out at once.
func natsSubscriber(t testing.TB, url string, atOnce int) message.Subscriber {
	t.Helper()
	s, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: url, QueueGroupPrefix: "caches", SubscribersCount: atOnce, AckWaitTimeout: 30 * time.Second,
		JetStream: wmnats.JetStreamConfig{
			AutoProvision: true, DurablePrefix: "caches",
			SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckExplicit(), nats.ManualAck(), nats.AckWait(2 * time.Second), nats.MaxAckPending(atOnce)},
		},
	}, watermill.NopLogger{})
	check(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// eventually waits until done.
func eventually(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it takes too long")
		}
	}
}

// With a real broker that has one message out at a time, a Consumer that stops and another one after it do all, in order.
func TestNATS(t *testing.T) {
	server := testenv.StartNATS(t)
	p := natsPublisher(t, server.URL)
	first := natsSubscriber(t, server.URL, 1)
	x := newSide(t, source(t, first, "users"))
	stop := x.run(t)
	var want []string
	for id := range 50 {
		check(t, p.Publish("users", updated("users", id)))
		want = append(want, fmt.Sprint("users", id))
	}
	eventually(t, func() bool { return len(x.history()) >= 10 })
	stop()
	check(t, first.Close())
	y := newSide(t, source(t, natsSubscriber(t, server.URL, 1), "users"))
	y.run(t)
	if last := want[len(want)-1]; !slices.Contains(x.history(), last) {
		eventually(t, func() bool { return slices.Contains(y.history(), last) })
	}
	var got []string // each as it was seen first
	for _, h := range slices.Concat(x.history(), y.history()) {
		if !slices.Contains(got, h) {
			got = append(got, h)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, " "))
	}
}
