// Package watermillsource implements a canal.Source that reads messages from a broker: Kafka,
// RabbitMQ, NATS, or any other with a Subscriber of Watermill
// (github.com/ThreeDotsLabs/watermill).
//
//	source, err := watermillsource.New(subscriber, envelope.Debezium,
//		"shop.shop.users", "shop.shop.orders", "shop")
//	consumer, err := canal.NewConsumer(cache, source, nil, bindings, &canal.Options{
//		Parking: parking.NewFile("parked.jsonl"),
//	})
//
// Package envelope describes how to configure the programs that publish, and why there is no
// checkpoint and no Locker.
//
// # Delivery
//
// A message is acknowledged when all its changes are processed, or when it is parked. No message
// is refused (Nack). Messages in progress when the Consumer stops are processed first by its next
// Run. If the subscriber was closed, the broker delivers them again. This depends on the broker
// and the Subscriber:
//
//   - All processes share one durable subscription (a consumer group, a queue). It begins with
//     the oldest message (Kafka: OffsetOldest).
//   - The broker must not drop messages after a number of deliveries or after some time. A broker
//     with an acknowledgement timeout delivers a message again when it expires, also while Redis
//     is down. This does no harm, but set the timeout to a minute rather than a second.
//   - watermill-nats needs nats.ManualAck() in JetStreamConfig.SubscribeOptions.
//     Without it, the client also acknowledges messages that were held for longer than
//     AckWaitTimeout.
//   - Close of a watermill-nats subscriber (v2.1.3) closes its channel while messages may still
//     be sent on it. If a message arrives at that moment, the process panics. No change is lost:
//     the broker delivers it again. To avoid the panic, stop the Consumer, drain the connection
//     (Drain of nats.Conn) and wait until it is closed, and only then close the subscriber. Or
//     let the process end without closing it. A message that the Consumer had not processed
//     delays the end of the drain until AckWaitTimeout or nats.DrainTimeout has passed, the
//     earlier of the two. The comment of consistency/watermillqueue shows the code.
//   - With NATS, create the durable consumer of each topic before the first subscription. A
//     subscription that creates its consumer deletes it when it ends, and the other processes of
//     the group then receive nothing more, without an error. AutoProvision does not prevent this.
//     The comment of consistency/watermillqueue shows the code.
//   - Handlers receive the changes of a row in order if the Subscriber delivers one message of a
//     partition at a time (Kafka), or one message at a time (NATS: SubscribersCount 1 and
//     MaxAckPending 1). Invalidations need no order.
//
// # Throughput
//
// The Consumer needs one trip to Redis for all messages that a Subscriber delivers without
// waiting for acknowledgements. A Subscriber that delivers one message at a time therefore costs
// one trip for each. On two cores, with NATS on the same machine, this is 4,000 messages per
// second, and 10,000 with 16 messages at a time. A channel of Watermill reaches 20,000 (go test
// -bench Messages, in this directory; without Redis, whose round trip is added for each message
// that is processed alone). To increase the rate, use more partitions, more topics, a Subscriber
// that delivers more messages at a time if no order is needed, or messages with several rows
// each, such as canal's.
package watermillsource
