package watermillsource_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/canal/watermillsource"
)

// A Consumer of the messages that Maxwell publishes. The channel stands for a broker.
func ExampleNew() {
	ctx, cancel := context.WithCancel(context.Background())
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	defer broker.Close()
	cache, err := cacheaside.NewLocal(nil) // with your *redis.Client: cacheaside.New
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	var name atomic.Value
	name.Store("Ann")
	users, err := cacheaside.NewLoader(cache, "user", func(context.Context, int64) (string, error) {
		return name.Load().(string), nil
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	source, err := watermillsource.New(broker, envelope.Maxwell, "maxwell")
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := canal.NewConsumer(cache, source, nil, []canal.Binding{
		canal.Bind(users, "shop", "users", canal.IntColumn[int64]("id")),
	}, &canal.Options{Parking: parking.NewFile("parked.jsonl")})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()

	fmt.Println(users.Get(ctx, 7))
	name.Store("Anne") // stands for an UPDATE by another program
	changed := message.NewMessage(watermill.NewUUID(), []byte(
		`{"database":"shop","table":"users","type":"update","ts":1,"data":{"id":7,"name":"Anne"},"old":{"name":"Ann"}}`))
	if err := broker.Publish("maxwell", changed); err != nil {
		log.Fatal(err)
	}
	for consumer.Stats().Changes == 0 { // until it has arrived
		time.Sleep(time.Millisecond)
	}
	fmt.Println(users.Get(ctx, 7))
	cancel()
	<-ended
	// Output:
	// Ann <nil>
	// Anne <nil>
}
