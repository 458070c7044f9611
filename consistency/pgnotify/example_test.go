package pgnotify_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgnotify"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

// A relay waits for notifications on a connection of its own. The outbox itself may be reached
// through PgBouncer.
func ExampleListen() {
	run := func(ctx context.Context, cache *cacheaside.Cache) error {
		db, err := sqlx.Open("pgx", "postgres://app@pgbouncer.internal:6432/shop")
		if err != nil {
			return err
		}
		defer db.Close()
		listen, err := pgnotify.Listen("postgres://app@postgres.internal:5432/shop")
		if err != nil {
			return err
		}
		outbox, err := sqloutbox.New(db, sqloutbox.Postgres, &sqloutbox.Options{Listen: listen})
		if err != nil {
			return err
		}
		relay, err := consistency.NewRelay(cache, outbox, nil)
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = run // with a Cache, until ctx ends
	// Output:
}

// The connection for notifications gets a new token of the cloud provider each time.
func ExampleListenWith() {
	token := func(context.Context) (string, error) { return "a token that is valid for 15 minutes", nil }
	config, err := pgx.ParseConfig("postgres://app@postgres.internal:5432/shop")
	if err != nil {
		panic(err)
	}
	listen := pgnotify.ListenWith(config, func(ctx context.Context, c *pgx.ConnConfig) (err error) {
		c.Password, err = token(ctx)
		return err
	})
	_ = &sqloutbox.Options{Listen: listen}
	// Output:
}
