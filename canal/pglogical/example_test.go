package pglogical_test

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/canal/pglogical"
	"github.com/cacheaside/cacheaside/consistency"
)

var (
	ctx   context.Context
	db    *sqlx.DB
	cache *cacheaside.Cache
	users *cacheaside.Loader[int64, string]
)

// Processes that write put the keys into the log of the database. A process that consumes, which
// can be one of them, invalidates the keys.
func ExampleOutbox() {
	write := func(id int64, name string) error {
		outbox, err := pglogical.NewOutbox(ctx, db, cache, nil)
		if err != nil {
			return err // for example: the slot does not exist
		}
		w, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
		if err != nil {
			return err
		}
		defer w.Close()
		return w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
			return err
		}, users.Key(id).Existing())
	}
	consume := func() error {
		source, err := pglogical.New(pglogical.Options{ConnString: "postgres://cacheaside@db/shop"})
		if err != nil {
			return err
		}
		consumer, err := canal.NewConsumer(cache, source, canal.NewFileCheckpoint("position"), []canal.Binding{
			canal.BindOutbox(""),
		}, &canal.Options{Parking: parking.NewFile("parked.jsonl")})
		if err != nil {
			return err
		}
		return consumer.Run(ctx)
	}
	_, _ = write, consume
}

// A health check of a process that writes.
func ExampleOutbox_Health() {
	outbox, err := pglogical.NewOutbox(ctx, db, cache, nil)
	if err != nil {
		return
	}
	healthy := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return outbox.Health(ctx)
	}
	_ = healthy
}
