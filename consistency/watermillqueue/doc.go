// Package watermillqueue keeps what is still to be invalidated in a message broker: Kafka,
// RabbitMQ, NATS, whatever has a Publisher and a Subscriber of Watermill
// (github.com/ThreeDotsLabs/watermill).
//
//	queue, err := watermillqueue.New(publisher, subscriber, "invalidations")
//	writer, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: queue})
//
// With it what a writer could not invalidate waits outside of its process, and any process that
// runs a consistency.Relay of the queue does it. It takes no part in transactions: a process that
// is killed between its commit and Put has put nothing. Only consistency.SQLOutbox, and reading the
// binlog, close that gap.
//
// # What is promised
//
// At least once: when Put has returned nil the broker has the items, and each is given to a Relay
// until one has done it, through kills of any process. That is as much as the broker, the Publisher
// and the Subscriber keep:
//
//   - Publish must return only when the broker has accepted the message, and kept it (JetStream;
//     RabbitMQ: ConfirmDelivery, durable queues, persistent messages; Kafka: acks of all replicas,
//     no asynchronous producer).
//   - Nothing may be given up after some number of deliveries, or some time (no delivery limit or
//     dead letters, no MaxDeliver, no retention shorter than the longest outage).
//   - All processes that run relays share one durable subscription (a consumer group, a queue),
//     which begins with the oldest message (Kafka: OffsetOldest), and was there before the first
//     Put.
//
// With watermill-nats that takes nats.ManualAck() among JetStreamConfig.SubscribeOptions: without
// it the client acknowledges also what a process has held for longer than AckWaitTimeout, as it
// does while Redis is out, and what is held when the subscription ends: that is lost.
//
// If Put or Later fails, items may be there nevertheless, and then are done too. Done is an
// acknowledgement, which may be lost: items are done again. All of that does no harm, as an
// invalidation may be repeated. A filter of the broker for repeated messages does none either: each
// publication has an ID of its own.
//
// # Closing a subscriber of NATS
//
// Close of a watermill-nats subscriber (v2.1.3) closes its channel while messages may still be sent
// on it. If a message arrives at that moment, the process panics. No item is lost: the broker
// delivers what was not acknowledged to another process. To avoid the panic, drain the connection
// first. Make the subscriber with nats.NewSubscriberWithNatsConn, and pass the queue a type that
// wraps it:
//
//	type drained struct {
//		*wmnats.Subscriber
//		conn *nats.Conn // the subscriber's own
//	}
//
//	func (d *drained) Close() error {
//		closed := d.conn.StatusChanged(nats.CLOSED)
//		if d.conn.Drain() == nil {
//			<-closed // no message arrives any more, and all that arrived were returned
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
// of the group then receive nothing more, without an error. AutoProvision does not prevent this: it
// creates only the stream. Create the consumers of both topics before the first subscription. Every
// process can do so at its start: what exists with these settings is kept.
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
// option that differs from the consumer, such as another nats.AckWait, makes the subscription fail.
//
// # Topics
//
// Two: the one that is named, for what is due, and another, with "-later" after it, for what has to
// wait: a Relay's backoff, a delayed double delete. Many subscribers hand out the next message only
// when the last is acknowledged (Kafka: of each partition), so in one topic the first that waits
// would hold up all others. In its own it still holds up what was put after it and is to wait for
// less: that may be late by as much as the longest wait in use, which is a day at most. With such a
// subscriber a Relay also does but one item at a time. Have it hand out more: NATS by
// SubscribersCount, and a MaxAckPending of the consumer that is not much above it; Kafka by
// partitions.
//
// # What is held here
//
// Messages that have been received and are not done are held in the process, not acknowledged:
// 10,000 of a topic at most. A broker that waits only so long for an acknowledgement gives the
// message to another: have it wait for at least as long as a Relay's claim is, 30 s if it is not
// set. If it does not, items are done twice, once in each such time. Messages that a process held
// when it was killed come again after that time, or as soon as the broker sees that it has gone.
//
// Depth tells of what is held in this process only, and Done removes only that: what else the
// broker has is not known here.
//
// # Messages
//
// JSON: loader, version and text of the key, or that it is all keys, and the state of the item;
// never a value, never a name of Redis. Keys can be read by all who can read the topic. Any other
// message is acknowledged and counted (Stats.Malformed), also one of a later version of this
// format, of which the changelog will tell.
//
// When something is due is reckoned by the clock of the process that has put it. One that is behind
// has its items done early by as much: mind that for double deletes. One that is ahead has no
// effect.
package watermillqueue
