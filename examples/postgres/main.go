// Postgres is a service on PostgreSQL and Redis. Its own writes invalidate caches through an
// outbox. The changes of all other programs arrive through logical replication. The server needs
// wal_level=logical and a publication named cacheaside with the table users:
//
//	export LISTEN=localhost:8080 REDIS=localhost:6379 DATABASE=postgres://shop:secret@db/shop
//	go -C examples/postgres run .
//
// The user has the attribute REPLICATION, and may create tables in the schema public.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/pglogical"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Getenv("LISTEN"))
	if err == nil {
		err = run(ctx, os.Getenv("DATABASE"), os.Getenv("REDIS"), listener)
	}
	stop()
	if !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

type service struct {
	db     *sqlx.DB
	names  *cacheaside.Loader[int64, string]
	writer *consistency.Writer
}

// run returns http.ErrServerClosed when ctx ends, and another error if a part of it fails.
func run(ctx context.Context, database, address string, listener net.Listener) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
	defer rdb.Close()
	db, err := sqlx.Open("pgx", database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: "shop", MaxLoads: 20})
	if err != nil {
		return err
	}
	defer cache.Close()
	s := &service{db: db}
	s.names, err = cacheaside.NewLoader(cache, "name", s.load, nil)
	outbox, err1 := consistency.NewSQLOutbox(db, consistency.Postgres, nil)
	checkpoint, err2 := canal.NewSQLCheckpoint(db, nil)
	source, err3 := pglogical.New(pglogical.Options{ConnString: database})
	locker, err4 := lock.NewRedis(rdb, nil) // of several processes, one reads the changes
	if err := errors.Join(err, err1, err2, err3, err4); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close()) }()
	if err := errors.Join(outbox.CreateTable(ctx), checkpoint.CreateTable(ctx)); err != nil { // in production: a migration
		return err
	}
	s.writer, err1 = consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
	users := canal.Bind(s.names, "public", "users", canal.IntColumn[int64]("id"))
	consumer, err2 := canal.NewConsumer(cache, source, checkpoint, []canal.Binding{users}, &canal.Options{Locker: locker})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.writer.Close()) }()
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Second}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return server.Serve(listener) })
	running.Go(func() error { return consumer.Run(ctx) })
	running.Go(func() error { <-ctx.Done(); return server.Close() })
	return running.Wait()
}

func (s *service) load(ctx context.Context, id int64) (name string, err error) {
	err = s.db.GetContext(ctx, &name, "SELECT name FROM users WHERE id = $1", id)
	return name, err // sql.ErrNoRows: the row does not exist
}

func (s *service) rename(ctx context.Context, id int64, name string) error {
	return s.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
		return err
	}, s.names.Key(id).Existing())
}

// ServeHTTP replies to GET /42 and POST /42?name=Grace.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(path.Base(r.URL.Path), 10, 64)
	if err == nil && r.Method == http.MethodPost {
		err = s.rename(r.Context(), id, r.FormValue("name"))
	}
	name, err2 := s.names.Get(r.Context(), id)
	if err = errors.Join(err, err2); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, name)
}
