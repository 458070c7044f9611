package watermillsource_test

import (
	"bufio"
	"context"
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
	p, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url, JetStream: wmnats.JetStreamConfig{AutoProvision: true}}, watermill.NopLogger{})
	check(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// natsSubscriber shares a durable subscription. At most so many messages are out at once. At the
// end of the test its connection is drained before it is closed, as the package's comment demands.
func natsSubscriber(t testing.TB, url string, atOnce int) message.Subscriber {
	t.Helper()
	conn, err := nats.Connect(url, nats.DrainTimeout(5*time.Second))
	check(t, err)
	s, err := wmnats.NewSubscriberWithNatsConn(conn, wmnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: "caches", SubscribersCount: atOnce, AckWaitTimeout: testenv.Hang,
		JetStream: wmnats.JetStreamConfig{
			AutoProvision: true, DurablePrefix: "caches",
			SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckExplicit(), nats.ManualAck(), nats.AckWait(2 * time.Second), nats.MaxAckPending(atOnce)},
		},
	}, watermill.NopLogger{})
	check(t, err)
	t.Cleanup(func() {
		closed := conn.StatusChanged(nats.CLOSED)
		if conn.Drain() == nil {
			<-closed
		}
		s.Close()
	})
	return s
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

// consumer does what comes, and tells of it, until it is killed. It goes on for each line that it
// is told.
func consumer() {
	t := &fatal{}
	x := newSide(t, source(t, natsSubscriber(t, os.Getenv("NATS"), 1), "users"))
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
			if err == io.EOF { // all that it has told before it was killed is read
				break
			}
			check(t, err)
			done = append(done, strings.TrimSpace(line))
			if n == 10 {
				c.Kill()
			}
		}
	}
	x := newSide(t, source(t, natsSubscriber(t, server.URL, 1), "users"))
	stop := x.run(t)
	testenv.Eventually(t, "the last one is done", func() bool { return slices.Contains(x.history(), want[len(want)-1]) })
	stop()
	// A message comes again, before the next, if a process was killed, or was so slow, that the
	// broker has not heard of its end.
	if got := slices.Compact(append(done, x.history()...)); !slices.Equal(got, want) {
		t.Errorf("they did %q", got)
	}
}
