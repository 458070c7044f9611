package watermillsource_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
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

func init() { testenv.RegisterChild("consumer", consumer) }

// fatal is for what helps tests, in a child.
type fatal struct{ testing.TB }

func (*fatal) Helper()        {}
func (*fatal) Cleanup(func()) {}
func (*fatal) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// consumer does what comes, and tells of it, until it is killed.
func consumer() {
	t := &fatal{}
	x := newSide(t, source(t, natsSubscriber(t, os.Getenv("NATS"), 1), "users"))
	x.tell = func(what string) { fmt.Println(what) }
	check(t, x.consumer.Run(context.Background()))
}

// With a real broker that has one message out at a time, two Consumers that are killed, and one after them, do all, in order.
func TestKilled(t *testing.T) {
	server := testenv.StartNATS(t)
	p := natsPublisher(t, server.URL)
	var want, seen []string
	for id := range 50 {
		check(t, p.Publish("users", updated("users", id)))
		want = append(want, fmt.Sprint("users", id))
	}
	for range 2 {
		c := testenv.SpawnChild(t, "consumer", "NATS="+server.URL)
		for range 10 {
			line, err := c.ReadLine(20 * time.Second)
			check(t, err)
			seen = append(seen, strings.TrimSpace(line))
		}
		c.Kill()
	}
	x := newSide(t, source(t, natsSubscriber(t, server.URL, 1), "users"))
	stop := x.run(t)
	eventually(t, func() bool { return slices.Contains(x.history(), want[len(want)-1]) })
	stop()
	rest := x.history()
	if at := slices.Index(want, rest[0]); at < 20-2 || !slices.Equal(rest, want[at:]) { // each that was killed may have left its last one unacknowledged
		t.Errorf("the last one did %q", rest)
	}
	if !slices.IsSortedFunc(seen, func(a, b string) int { return cmp.Compare(slices.Index(want, a), slices.Index(want, b)) }) {
		t.Errorf("the others did %q", seen)
	}
}
