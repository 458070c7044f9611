package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/pglogical"
)

// snippet: connect
// openPostgres returns a pool, and the source that reads the publication "cacheaside". Both ask for
// the password before each new connection.
func (c config) openPostgres() (*database, error) {
	parsed, err := pgx.ParseConfig(c.database)
	if err != nil {
		return nil, err
	}
	ask := stdlib.OptionBeforeConnect(func(ctx context.Context, conn *pgx.ConnConfig) (err error) {
		conn.Password, err = c.password(ctx)
		return err
	})
	source, err := pglogical.New(pglogical.Options{ConnString: c.database, Password: c.password})
	if err != nil {
		return nil, err
	}
	return &database{DB: sqlx.NewDb(stdlib.OpenDB(*parsed, ask), "pgx"), schema: "public", source: source}, nil
}

// end
