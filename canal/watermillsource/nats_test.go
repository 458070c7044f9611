package watermillsource_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func natsPublisher(t testing.TB, url string) message.Publisher {
	t.Helper()
	p, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url,
		JetStream: wmnats.JetStreamConfig{AutoProvision: true}}, watermill.NopLogger{})
	check(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// drained is a subscriber that Close first drains, as the package's comment demands.
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

// natsSubscriber shares the consumer of the topic with all its likes. At most atOnce messages are
// out at once. The subscriber is closed at the end of the test.
func natsSubscriber(t testing.TB, url, topic string, atOnce int) *drained {
	t.Helper()
	conn, err := nats.Connect(url, nats.DrainTimeout(5*time.Second))
	check(t, err)
	createConsumer(t, conn, topic, atOnce)
	s, err := wmnats.NewSubscriberWithNatsConn(conn, wmnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: "caches", SubscribersCount: atOnce, AckWaitTimeout: testenv.Hang,
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: "caches", SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}, watermill.NopLogger{})
	check(t, err)
	d := &drained{s, conn}
	t.Cleanup(func() { d.Close() })
	return d
}

// createConsumer creates the consumer of the topic, if it does not exist, as the package's comment
// demands: a subscription that creates its consumer deletes it at its end.
func createConsumer(t testing.TB, conn *nats.Conn, topic string, atOnce int) {
	t.Helper()
	js, err := conn.JetStream()
	check(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}})
	check(t, err)
	_, err = js.AddConsumer(topic, &nats.ConsumerConfig{
		Durable: "caches", DeliverGroup: "caches", DeliverSubject: "caches." + topic,
		AckPolicy: nats.AckExplicitPolicy, AckWait: 2 * time.Second, MaxAckPending: atOnce,
	})
	check(t, err)
}

// A Consumer receives messages after the subscriber that came first was closed.
func TestGroupOutlivesItsFirst(t *testing.T) {
	server := testenv.StartNATS(t)
	p := natsPublisher(t, server.URL)
	subscriber := natsSubscriber(t, server.URL, "users", 1)
	first, second := newSide(t, source(t, subscriber, "users")), newSide(t,
		source(t, natsSubscriber(t, server.URL, "users", 1), "users"))
	published := 0
	publish := func() {
		check(t, p.Publish("users", updated("users", published)))
		published++
	}
	stop := first.run(t)
	publish()
	testenv.Eventually(t, "the first one receives", func() bool { return len(first.history()) > 0 })
	second.run(t)
	testenv.Eventually(t, "the second one shares the messages", func() bool {
		publish()
		return len(second.history()) > 0
	})
	js, err := subscriber.conn.JetStream()
	check(t, err)
	testenv.Eventually(t, "all is acknowledged", func() bool { // a message that is held would delay Close
		info, err := js.ConsumerInfo("users", "caches")
		check(t, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	stop()
	check(t, subscriber.Close())
	last := fmt.Sprint("users", published)
	publish()
	testenv.Eventually(t, "the second one does the last",
		func() bool { return slices.Contains(second.history(), last) })
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

// consumer processes messages and prints them, until it is killed. Each line on its stdin lets it
// continue.
func consumer() {
	t := &fatal{}
	x := newSide(t, source(t, natsSubscriber(t, os.Getenv("NATS"), "users", 1), "users"))
	goOn := bufio.NewScanner(os.Stdin)
	x.tell = func(what string) {
		fmt.Println(what)
		goOn.Scan()
	}
	check(t, x.consumer.Run(context.Background()))
}

// With a real broker that has one message out at a time, two Consumers that are killed, and one
// after them, do all, in order.
func TestKilled(t *testing.T) {
	server := testenv.StartNATS(t)
	p := natsPublisher(t, server.URL)
	var want, done []string
	for id := range 50 {
		check(t, p.Publish("users", updated("users", id)))
		want = append(want, fmt.Sprint("users", id))
	}
	for range 2 {
		c := testenv.SpawnChild(t, "consumer", "NATS="+server.URL)
		fmt.Fprint(c.Stdin, strings.Repeat("\n", 10)) // it waits in the midst of the eleventh
		for n := 1; ; n++ {
			line, err := c.ReadLine(testenv.Hang)
			if err == io.EOF { // all that it printed before the kill is read
				break
			}
			check(t, err)
			done = append(done, strings.TrimSpace(line))
			if n == 10 {
				c.Kill()
			}
		}
	}
	x := newSide(t, source(t, natsSubscriber(t, server.URL, "users", 1), "users"))
	stop := x.run(t)
	testenv.Eventually(t, "the last one is done",
		func() bool { return slices.Contains(x.history(), want[len(want)-1]) })
	stop()
	// A message comes again, before the next, if a process was killed, or was so slow that the
	// broker did not receive its acknowledgement.
	if got := slices.Compact(append(done, x.history()...)); !slices.Equal(got, want) {
		t.Errorf("they did %q", got)
	}
}
