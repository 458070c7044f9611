// Package pgnotify connects the relays of a sqloutbox.Outbox to the notifications of
// PostgreSQL, with the driver pgx. An idle relay then waits instead of polling.
//
//	listen, err := pgnotify.Listen(os.Getenv("POSTGRES_DSN"))
//	…
//	options := &sqloutbox.Options{Listen: listen}
//	outbox, err := sqloutbox.New(db, sqloutbox.Postgres, options)
package pgnotify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cacheaside/cacheaside/internal/address"
)

// Listen returns a value for sqloutbox.Options.Listen. connString is a URL or a DSN as
// for pgx.Connect, with the rights of any user who may connect. It does no I/O, and returns an
// error if connString is invalid.
//
// connString must name the database of the outbox on its primary server. It must lead there
// directly: LISTEN does not work through a pool that gives each transaction another connection,
// such as PgBouncer with pool_mode=transaction. Through such a pool a Relay receives nothing, logs
// that, and polls. NOTIFY works through it, so the outbox itself may use it.
func Listen(connString string) (func(ctx context.Context, channel string, received func(payload string)) error, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("pgnotify: Listen: connString %w", address.ErrPostgres)
	}
	return ListenWith(config, nil), nil
}

// ListenWith is Listen for a parsed configuration. beforeConnect, if it is not nil, is called
// before each connection with a copy of config that it may change, for example to set a password
// that is valid for a short time. Its error makes the connection fail, and the Relay tries again.
// The functions of pgxpool.Config.BeforeConnect and stdlib.OptionBeforeConnect are of the same
// type.
func ListenWith(
	config *pgx.ConnConfig, beforeConnect func(context.Context, *pgx.ConnConfig) error,
) func(ctx context.Context, channel string, received func(payload string)) error {
	config = config.Copy()
	return func(ctx context.Context, channel string, received func(payload string)) error {
		dialed := config.Copy()
		if beforeConnect != nil {
			if err := beforeConnect(ctx, dialed); err != nil {
				return fmt.Errorf("pgnotify: before the connection: %w", err)
			}
		}
		return listen(ctx, dialed, channel, received)
	}
}

const closeTimeout = time.Second

func listen(ctx context.Context, config *pgx.ConnConfig, channel string, received func(payload string)) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("pgnotify: connect: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	// The connection may be idle for long, and the server would close it. It has this setting since
	// PostgreSQL 14; an earlier one refuses the statement, and closes no idle connections.
	_, _ = conn.Exec(ctx, "SET idle_session_timeout = 0")
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return fmt.Errorf("pgnotify: LISTEN: %w", err)
	}
	received("")
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("pgnotify: wait: %w", err)
		}
		received(n.Payload)
	}
}
