package main

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/canal/pglogical"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/lock"
)

// open connects the parts of the service. The caller calls close, also after an error.
func (s *service) open(ctx context.Context, c config) error {
	rdb := redis.NewClient(&redis.Options{Addr: c.redis, ContextTimeoutEnabled: true})
	s.closeLast(rdb.Close)
	db, err := c.openDatabase()
	if err != nil {
		return err
	}
	s.closeLast(db.Close)
	if s.cache, err = cacheaside.New(rdb, &cacheaside.Options{Prefix: "shop", MaxLoads: 20}); err != nil {
		return err
	}
	if err := s.openFilter(rdb); err != nil {
		return err
	}
	s.closeLast(s.cache.Close) // before the filter
	if s.locker, err = lock.NewRedis(rdb, nil); err != nil {
		return err
	}
	s.closeLast(s.locker.Close)
	if s.users, err = newUsers(s.cache, db, s.filter); err != nil {
		return err
	}
	outbox, err := sqloutbox.New(db, sqloutbox.Postgres, nil)
	if err != nil {
		return err
	}
	if err := outbox.CreateTable(ctx); err != nil { // in production: a migration
		return err
	}
	if s.users.writer, err = consistency.NewWriter(db, s.cache, &consistency.Options{Queue: outbox}); err != nil {
		return err
	}
	s.closeLast(s.users.writer.Close)
	return s.openConsumer(ctx, c)
}

// openDatabase returns a pool that asks for the password before each new connection.
func (c config) openDatabase() (*sqlx.DB, error) {
	parsed, err := pgx.ParseConfig(c.database)
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context, conn *pgx.ConnConfig) (err error) {
		conn.Password, err = c.password(ctx)
		return err
	}
	return sqlx.NewDb(stdlib.OpenDB(*parsed, stdlib.OptionBeforeConnect(ask)), "pgx"), nil
}

func (s *service) openFilter(rdb *redis.Client) error {
	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, nil)
	if err != nil {
		return err
	}
	s.closeLast(filter.Close)
	if s.filter, err = bloom.NewReplica(filter); err != nil {
		return err
	}
	s.closeLast(s.filter.Close)
	return nil
}

// openConsumer makes the consumer of the database's log. Of several processes, one reads the log.
func (s *service) openConsumer(ctx context.Context, c config) error {
	checkpoint, err := canal.NewSQLCheckpoint(s.users.db, nil)
	if err != nil {
		return err
	}
	if err := checkpoint.CreateTable(ctx); err != nil { // in production: a migration
		return err
	}
	source, err := pglogical.New(pglogical.Options{ConnString: c.database, Password: c.password})
	if err != nil {
		return err
	}
	parked, err := parking.NewTable(s.users.db, nil) // changes that could not be processed
	if err != nil {
		return err
	}
	if err := parked.CreateTable(ctx); err != nil { // in production: a migration
		return err
	}
	bindings := []canal.Binding{
		canal.Bind(s.users.byID, "public", "users", canal.IntColumn[int64]("id")),
		canal.BindGroup(s.users.byCity, "public", "users", canal.Text("city", "city:%s")),
	}
	s.consumer, err = canal.NewConsumer(s.cache, source, checkpoint, bindings, &canal.Options{
		Locker:  s.locker,
		Parking: parked,
		OnGap:   s.rebuildFilter,

		RetrySetup: true, // the server stays up while the publication is wrong
	})
	return err
}

// rows lists the keys of the filter.
func (s *service) rows() bloom.Source { return bloom.Table[int64](s.users.db, "users", "id") }

// rebuildFilter is called at the first start, and when the consumer may have missed new rows.
func (s *service) rebuildFilter(ctx context.Context) error {
	_, err := s.filter.Rebuild(ctx, s.rows(), &bloom.RebuildOptions{AllowFewer: true, Settle: -1})
	return err
}

// closeLast makes close call f, before the functions of earlier calls.
func (s *service) closeLast(f func() error) { s.closers = append(s.closers, f) }

func (s *service) close() error {
	var errs []error
	for _, f := range slices.Backward(s.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
