package envelope_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// With any client of a broker, a goroutine sends the received messages to a channel, and
// acknowledges a message when its changes are done.
func ExampleNewSource() {
	cache, err := cacheaside.NewLocal(nil) // with your *redis.Client, elsewhere
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = cache.Close() }()
	name := "Anne"
	users, err := cacheaside.NewLoader(cache, "user", func(context.Context, int64) (string, error) { return name, nil },
		&cacheaside.LoaderOptions{TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}

	messages := make(chan envelope.Message)
	consumer, err := canal.NewConsumer(cache, envelope.NewSource(messages, envelope.Maxwell), nil, []canal.Binding{
		canal.Bind(users, "shop", "users", canal.IntColumn[int64]("id")),
	}, &canal.Options{Parking: parking.NewFile("parked.jsonl")})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.Remove("parked.jsonl") }() // in this example nothing is parked
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()

	fmt.Println(users.Get(ctx, 7))
	name = "Anne Marie" // stands for an UPDATE by another program, which Maxwell reports
	done := make(chan struct{})
	messages <- envelope.Message{
		Payload: []byte(
			`{"database":"shop","table":"users","type":"update","ts":1477053234,"data":{"id":7,"name":"Anne Marie"},"old":{"name":"Anne"}}`),
		Ack: func() { close(done) },
	}
	<-done
	fmt.Println(users.Get(ctx, 7))
	cancel()
	fmt.Println(<-ended)
	// Output:
	// Anne <nil>
	// Anne Marie <nil>
	// <nil>
}
