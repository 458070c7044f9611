// Package watermillsource makes a canal.Source of what comes through a message broker: Kafka,
// RabbitMQ, NATS, whatever has a Subscriber of Watermill (github.com/ThreeDotsLabs/watermill).
//
//	source, err := watermillsource.New(subscriber, envelope.Debezium,
//		"shop.shop.users", "shop.shop.orders", "shop")
//	consumer, err := canal.NewConsumer(cache, source, nil, bindings, &canal.Options{
//		Parking: parking.NewFile("parked.jsonl"),
//	})
//
// Package envelope says how to set the programs that publish, and why there is no checkpoint and no
// Locker.
//
// # What is promised
//
// A message is acknowledged when all is done that it asks for, or it is parked. None is refused
// (Nack): what is under way when the Consumer stops is done by its next Run, before all else, or,
// when the subscriber was closed, comes again from the broker. That is as much as the broker and
// the Subscriber keep:
//
//   - All processes share one durable subscription (a consumer group, a queue), which begins with
//     the oldest message (Kafka: OffsetOldest).
//   - Nothing may be given up after some number of deliveries or some time. A broker that waits
//     only so long for an acknowledgement gives the message again, also while Redis is out: no
//     harm, but have it wait for a minute rather than a second.
//   - With watermill-nats that takes nats.ManualAck() among JetStreamConfig.SubscribeOptions:
//     without it the client acknowledges also what was held for longer than AckWaitTimeout.
//   - Close of a watermill-nats subscriber (v2.1.3) closes its channel while messages may still be
//     sent on it. If a message arrives at that moment, the process panics. No change is lost: the
//     broker delivers it again. To avoid the panic, stop the Consumer, drain the connection (Drain
//     of nats.Conn) and wait until it is closed, and only then close the subscriber; or let the
//     process end without closing it. A message that the Consumer had not done delays the end of
//     the drain until AckWaitTimeout or nats.DrainTimeout, whichever comes first. The comment of
//     consistency/watermillqueue shows the code.
//   - With NATS, create the durable consumer of each topic before the first subscription. A
//     subscription that creates its consumer deletes it when it ends, and the other processes of
//     the group then receive nothing more, without an error. AutoProvision does not prevent this.
//     The comment of consistency/watermillqueue shows the code.
//   - Handlers see the changes of a row in their order if the Subscriber hands out one message of a
//     partition at a time (Kafka), or one of all (NATS: SubscribersCount 1 and MaxAckPending 1). To
//     invalidate needs no order.
//
// # How many
//
// The messages that a Subscriber has out at once are what the Consumer does in one trip to Redis,
// so one that hands out one at a time costs a trip for each. On two cores, of NATS on the same
// machine, 4,000 messages a second come so, and 10,000 with 16 at a time; a channel of Watermill
// has 20,000 (go test -bench Messages, in this folder; without Redis, whose round trip is added for
// each that is alone). More come by more partitions, by more topics, by a Subscriber that has more
// out at once where nothing needs the order, and by messages that have several rows each, as
// canal's do.
package watermillsource
