// Service is a service as one would run it, on PostgreSQL, MySQL or MariaDB, and Redis: rows and
// lists of rows through the cache, its own writes through an outbox, the writes of all other
// programs through the database's log, a Bloom filter before the table, a nightly job under a lock,
// metrics, and checks of its health. It continues to serve while Redis or the log has trouble.
//
//	go -C examples/service run . -database postgres://shop@db/shop -redis redis:6379
//	go -C examples/service run . -database "shop@tcp(db:3306)/shop" -redis redis:6379
//
// Without -database it uses an SQLite file, which has no log, and without -redis an embedded Redis.
//
// wiring.go puts the parts together, users.go is the repository, http.go has the routes, reports.go
// the nightly job, metrics.go the metrics; servers.go, postgres.go and mysql.go connect to servers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cacheaside/cacheaside"
)

func main() {
	var c config
	flag.StringVar(&c.database, "database", "", "`DSN` of PostgreSQL (postgres://…), MySQL or MariaDB; empty: SQLite")
	flag.StringVar(&c.redis, "redis", "", "`address` of Redis; empty: embedded")
	flag.StringVar(&c.passwordFile, "password-file", "", "`file` with the database's password, which may change")
	listen := flag.String("listen", "localhost:8080", "`address` to listen at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err == nil {
		err = run(ctx, c, listener)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// snippet: run
// run serves until ctx ends, finishes the requests in progress, and returns nil then.
func run(ctx context.Context, c config, listener net.Listener) error {
	rdb, stopRedis, err := c.openRedis()
	if err != nil {
		return err
	}
	defer stopRedis()
	db, err := c.openDatabase()
	if err != nil {
		return err
	}
	defer db.Close()
	// MaxLoads: what the database can serve, divided by the number of processes.
	s, err := open(ctx, db, rdb, cacheaside.Options{Prefix: "shop", MaxLoads: 20})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Second}
	serve := func(context.Context) error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
	shutdown := func(ctx context.Context) error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(ctx)
	}
	return s.Run(ctx, serve, shutdown, s.reports.daily)
}

// end
