package watermillqueue_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/watermillqueue"
)

// A queue in a broker, for which the channel stands. A Writer puts what it could not invalidate.
// The Relay of any process claims and executes it.
func ExampleNew() {
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	queue, err := watermillqueue.New(broker, broker, "invalidations", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer queue.Close()
	ctx := context.Background()
	// consistency.NewWriter(db, cache, &consistency.Options{Queue: queue}) does this:
	err = queue.Put(ctx, consistency.Item{Key: cacheaside.Key{Loader: "user", Version: "1", Text: "42"}})
	if err != nil {
		log.Fatal(err)
	}
	// consistency.NewRelay(queue, cache, nil) does this:
	for {
		items, err := queue.Claim(ctx, 10, time.Minute)
		if err != nil {
			log.Fatal(err)
		}
		if len(items) == 0 {
			queue.Wait(ctx)
			continue
		}
		fmt.Println(items[0].Key.Loader, items[0].Key.Text)
		fmt.Println(queue.Done(ctx, items...))
		break
	}
	// Output:
	// user 42
	// <nil>
}
