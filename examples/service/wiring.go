package main

import (
	"context"
	_ "embed"
	"errors"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/stack"
)

// A service is one process of the program.
type service struct {
	*stack.Stack
	users   *Users
	reports *Reports
	metrics *metrics
}

// A database is where the tables are.
type database struct {
	*sqlx.DB
	schema string       // of the tables, in the log
	source canal.Source // of the log; nil: there is none
	create string       // what CREATE TABLE ends with
}

//go:embed tables.sql
var tables string

// snippet: open
// open makes the parts. The caller calls Run, which closes them.
func open(ctx context.Context, db *database, rdb *redis.Client, o cacheaside.Options) (_ *service, err error) {
	s := &service{}
	if s.metrics, err = newMetrics(); err != nil {
		return nil, err
	}
	o.Observer = s.metrics
	if s.Stack, err = stack.New(db.DB, rdb, &stack.Options{Cache: &o}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	filter, err := s.Filter("users", 1_000_000, bloom.Table[int64](db.DB, "users", "id"), nil)
	if err != nil {
		return nil, err
	}
	if s.users, err = newUsers(s.Stack, db.DB, filter); err != nil {
		return nil, err
	}
	if db.source != nil {
		if err := s.Follow(db.source, s.users.bindings(db.schema), nil); err != nil {
			return nil, err
		}
	}
	s.reports = &Reports{db.DB, s.Locker}
	if err := createTables(ctx, s.Stack, db); err != nil {
		return nil, err
	}
	return s, s.metrics.watch(s.Stack)
}

// end

// createTables creates all tables. In production a migration does so.
func createTables(ctx context.Context, s *stack.Stack, db *database) error {
	for statement := range strings.SplitSeq(tables, ";\n") {
		if _, err := db.ExecContext(ctx, statement+db.create); err != nil {
			return err
		}
	}
	return s.CreateTables(ctx)
}
