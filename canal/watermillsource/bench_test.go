package watermillsource_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The messages that a subscriber has in flight at once bound what the Consumer can process
// together. Each message is about one row, and the cache has no Redis: the times are those of the
// broker and of the Consumer.
func BenchmarkMessages(b *testing.B) {
	flood := func(b *testing.B, s message.Subscriber, publish func(*message.Message), topics ...string) {
		x := newSide(b, source(b, s, topics...))
		x.run(b)
		testenv.Eventually(b, "it begins", func() bool { return x.consumer.Stats().Batches > 0 })
		b.ResetTimer()
		for id := range b.N {
			publish(updated("orders", id))
		}
		testenv.Eventually(b, "all is consumed", func() bool { return x.consumer.Stats().Changes >= int64(b.N) })
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	}
	b.Run("gochannel, all at once", func(b *testing.B) {
		c := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1000}, nil)
		b.Cleanup(func() { c.Close() })
		flood(b, c, func(m *message.Message) { check(b, c.Publish("t", m)) }, "t")
	})
	b.Run("gochannel, one at a time", func(b *testing.B) {
		c := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
		b.Cleanup(func() { c.Close() })
		flood(b, c, func(m *message.Message) { check(b, c.Publish("t", m)) }, "t")
	})
	for _, atOnce := range []int{1, 16} {
		b.Run(fmt.Sprintf("NATS, %d at a time", atOnce), func(b *testing.B) {
			server := testenv.StartNATS(b)
			p := natsPublisher(b, server.URL)
			for id := range b.N { // before, so that it is not measured
				check(b, p.Publish("t", updated("orders", id)))
			}
			flood(b, natsSubscriber(b, server.URL, "t", atOnce), func(*message.Message) {}, "t")
		})
	}
}
