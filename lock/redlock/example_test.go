package redlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// Three independent servers: the lock survives the loss of one.
func ExampleNew() {
	var nodes []*redis.Client
	for i := range 3 {
		server, _ := miniredis.Run() // any three Redis servers
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer rdb.Close()
		nodes = append(nodes, rdb)
		if i == 2 {
			server.SetError("LOADING Redis is loading the dataset in memory") // it is restarting
		}
	}
	// The options are usually nil. These values suit a very busy machine.
	locker, err := redlock.New(nodes, &lock.Options{TTL: time.Minute, Timeout: 15 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lease, err := locker.Acquire(context.Background(), "report", nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(lease.Token() > 0, lease.Release())
	// Output: true <nil>
}
