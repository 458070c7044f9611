package pgnotify_test

import (
	"context"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgnotify"
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
		outbox, err := consistency.NewSQLOutbox(db, consistency.Postgres, &consistency.SQLOutboxOptions{Listen: listen})
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
