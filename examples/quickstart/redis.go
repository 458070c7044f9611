package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/examples/internal/embedded"
)

// redisServer is the Redis that all processes share: embedded, or a real one.
type redisServer struct {
	address string
	prefix  string // prefix of all keys of this run

	embedded *embedded.Redis // nil for a real Redis
}

// openRedis starts the embedded server, or pings the one at address.
func openRedis(ctx context.Context, address string) (*redisServer, error) {
	s := &redisServer{address: address, prefix: "cacheaside-quickstart-" + unique()}
	if address != "" {
		rdb := s.client(1)
		defer rdb.Close()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return nil, fmt.Errorf("the Redis at %s: %w", address, err)
		}
		return s, nil
	}
	var err error
	if s.embedded, err = embedded.Start(); err != nil {
		return nil, err
	}
	s.address = s.embedded.Addr()
	return s, nil
}

// startClock lets keys of the embedded server expire. Before that, its time stands still.
func (r *redisServer) startClock() {
	if r.embedded != nil {
		r.embedded.StartClock(2 * time.Millisecond)
	}
}

// client returns a client for this number of goroutines. It opens its connections in advance, so
// that measured requests do not wait for them.
func (r *redisServer) client(goroutines int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.address, ContextTimeoutEnabled: true, PoolSize: goroutines,
		MinIdleConns: goroutines})
}

func (r *redisServer) String() string {
	if r.embedded != nil {
		return "embedded"
	}
	return r.address
}

// clear deletes all keys of this run.
func (r *redisServer) clear(ctx context.Context) error {
	rdb := r.client(1)
	defer rdb.Close()
	var keys []string
	scan := rdb.Scan(ctx, 0, r.prefix+"*", 1000).Iterator()
	for scan.Next(ctx) {
		keys = append(keys, scan.Val())
	}
	errs := []error{scan.Err()}
	for chunk := range slices.Chunk(keys, 1000) {
		errs = append(errs, rdb.Del(ctx, chunk...).Err())
	}
	return errors.Join(errs...)
}

// close deletes all keys of this run and closes the client.
func (r *redisServer) close(ctx context.Context) error {
	if r.embedded != nil {
		r.embedded.Close()
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return r.clear(ctx)
}
