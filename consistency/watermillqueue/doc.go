// Package watermillqueue stores pending invalidations in a message broker: Kafka, RabbitMQ, NATS,
// or any other with a Publisher and a Subscriber of Watermill
// (github.com/ThreeDotsLabs/watermill).
//
//	queue, err := watermillqueue.New(publisher, subscriber, "invalidations", nil)
//	writer, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: queue})
//
// The invalidations that a writer could not execute survive its process. Any process that runs a
// consistency.Relay of the queue executes them. The queue takes no part in transactions: if a
// process is killed between its commit and Put, the invalidation is lost. Only
// sqloutbox.Outbox and reading the binlog close that gap.
//
// # What is promised
//
// At least once: after Put has returned nil, the broker has the items. Each is delivered to a
// Relay until one has completed it, even if processes are killed. This depends on the broker, the
// Publisher and the Subscriber:
//
//   - Publish must return only after the broker has accepted and stored the message (JetStream;
//     RabbitMQ: ConfirmDelivery, durable queues, persistent messages; Kafka: acks of all replicas,
//     no asynchronous producer).
//   - The broker must not drop messages after a number of deliveries or some time (no delivery
//     limit or dead letters, no MaxDeliver, no retention shorter than the longest outage).
//   - All processes with relays must share one durable subscription (a consumer group, a queue)
//     that begins with the oldest message (Kafka: OffsetOldest) and exists before the first Put.
//
// With watermill-nats, JetStreamConfig.SubscribeOptions must contain nats.ManualAck(). Without it
// the client also acknowledges messages that a process has held for longer than AckWaitTimeout, as
// it does while Redis is down, and messages that it holds when the subscription ends. Their items
// are lost.
//
// If Put or Later fails, the items may nevertheless be in the broker, and are then executed. Done
// is an acknowledgement, which may be lost: then items are executed again. This does no harm,
// because an invalidation can be repeated. A broker that filters repeated messages does no harm
// either: each publication has its own ID.
//
// # Closing a subscriber of NATS
//
// Close of a watermill-nats subscriber (v2.1.3) closes its channel while messages may still be
// sent on it. If a message arrives at that moment, the process panics. No item is lost: the
// broker delivers what was not acknowledged to another process. To avoid the panic, drain the
// connection first. Make the subscriber with nats.NewSubscriberWithNatsConn, and pass the queue a
// type that wraps it:
//
//	type drained struct {
//		*wmnats.Subscriber
//		conn *nats.Conn // the subscriber's own
//	}
//
//	func (d *drained) Close() error {
//		closed := d.conn.StatusChanged(nats.CLOSED)
//		if d.conn.Drain() == nil {
//			<-closed // no more messages arrive, and all that arrived were returned
//		}
//		if err := d.Subscriber.Close(); !errors.Is(err, nats.ErrConnectionClosed) {
//			return err
//		}
//		return nil
//	}
//
// While Queue.Close waits for it, the queue returns every message that it holds or still receives.
//
// A JetStream subscription that creates its consumer deletes it when it ends. The other processes
// of the group then receive no more items, without an error. AutoProvision does not prevent this:
// it creates only the stream. Create the consumers of both topics before the first subscription.
// Every process can do so at its start: a consumer that exists with these settings is unchanged.
//
//	for _, topic := range []string{"invalidations", "invalidations-later"} {
//		_, err := js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}})
//		if err != nil {
//			return err
//		}
//		_, err = js.AddConsumer(topic, &nats.ConsumerConfig{
//			Durable:        "relays", // DurablePrefix, or what DurableCalculator returns
//			DeliverGroup:   "relays", // QueueGroupPrefix
//			DeliverSubject: "relays." + topic,
//			DeliverPolicy:  nats.DeliverAllPolicy,
//			AckPolicy:      nats.AckExplicitPolicy,
//			AckWait:        30 * time.Second,
//			MaxAckPending:  24,
//		})
//		if err != nil {
//			return err
//		}
//	}
//
// No stream may have the DeliverSubject. SubscribeOptions then needs only nats.ManualAck(). An
// option that differs from the consumer, such as another nats.AckWait, makes the subscription
// fail.
//
// # Topics
//
// The queue uses two topics: the named one for items that are due, and one with the suffix
// "-later" for items that have to wait, such as a Relay's backoff or a delayed double delete.
// Many subscribers deliver the next message only after the last one was acknowledged (Kafka: per
// partition). In a single topic, the first waiting item would therefore delay all others.
//
// In the second topic a waiting item still delays the items behind it that have a shorter delay,
// by at most the longest delay in use. That is at most a day. With such a subscriber a Relay also
// handles only one item at a time. To deliver more messages concurrently, set SubscribersCount
// for NATS, and a MaxAckPending of the consumer that is not much higher; use several partitions
// for Kafka.
//
// # Messages held by the process
//
// The process holds messages that it has received and not acknowledged: at most 10,000 per topic.
// A broker that waits a limited time for an acknowledgement delivers the message to another
// process. That time must be at least RelayOptions.ClaimFor, 30 s by default. Otherwise items are
// executed repeatedly, once per such time. The messages of a killed process are delivered again
// after that time, or as soon as the broker detects that the process is gone.
//
// Depth counts only the items that this process holds, and Done removes only those. The queue
// cannot see other items in the broker.
//
// # Message format
//
// A message is JSON. It contains the loader, the version and the text of the key, or that it
// stands for all keys or for a group, and the state of the item. A release that does not know
// groups invalidates all keys of the loader in place of a group. A message never contains a value
// or a name in Redis. All readers of the topic can read the keys. Other messages are acknowledged
// and counted (Stats.Malformed), including those of a later version of the format; the changelog
// will announce such a version.
//
// The due time of an item is computed with the clock of the process that has put it. If that clock
// is behind, the item is executed early by the difference, which matters for double deletes. If it
// is ahead, this has no effect.
package watermillqueue
