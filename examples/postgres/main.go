// Postgres is a service on PostgreSQL and Redis: rows and lists of rows through the cache, its own
// writes through an outbox, the writes of all other programs through logical replication, a Bloom
// filter before the table, and a lock. It continues to serve while Redis or the database's log has
// trouble. The server needs wal_level=logical, a table and a publication:
//
//	CREATE TABLE users (id BIGINT PRIMARY KEY, city TEXT NOT NULL, name TEXT NOT NULL);
//	ALTER TABLE users REPLICA IDENTITY FULL; -- so that the log has the city before a change
//	CREATE PUBLICATION cacheaside FOR TABLE users;
//
//	export LISTEN=localhost:8080 REDIS=localhost:6379 DATABASE=postgres://shop@db/shop
//	export PASSWORD_FILE=/run/secrets/shop # read before each new connection, so it may change
//	go -C examples/postgres run .
//
// The user has the attribute REPLICATION, and may create tables in the schema public.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	c := config{database: os.Getenv("DATABASE"), redis: os.Getenv("REDIS"), passwordFile: os.Getenv("PASSWORD_FILE")}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Getenv("LISTEN"))
	if err == nil {
		err = run(ctx, c, listener)
	}
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

type config struct {
	database     string // a URL without the password
	redis        string // host:port
	passwordFile string // "": the database asks for no password
}

// password returns the password of the database's user as it is now.
func (c config) password(context.Context) (string, error) {
	if c.passwordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.passwordFile)
	return strings.TrimSpace(string(text)), err
}

type service struct {
	cache    *cacheaside.Cache
	users    *Users
	locker   *lock.Locker
	consumer *canal.Consumer
	filter   *bloom.Replica
	closers  []func() error // what close calls, last first
}

// run serves until ctx ends, and returns nil then.
func run(ctx context.Context, c config, listener net.Listener) (err error) {
	s := new(service)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx, c); err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Second}
	running, ending := errgroup.WithContext(ctx)
	running.Go(func() error { return server.Serve(listener) })
	running.Go(func() error { return s.consumer.Run(ending) })
	running.Go(func() error { return s.filter.Maintain(ending, s.rows(), nil) })
	running.Go(func() error { <-ending.Done(); return server.Close() })
	if err := running.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}
