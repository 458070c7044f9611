package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/pglogical"
)

// postgreSQL is a server whose changes arrive by logical replication.
type postgreSQL struct {
	shop
	config  *pgx.ConnConfig
	given   url.URL
	version string // "PostgreSQL 15.18"
	created bool
}

// openPostgres connects to a server and creates the database. Keys of caches are made of SKUs, so
// the table needs REPLICA IDENTITY FULL.
func openPostgres(ctx context.Context, given string) (p *postgreSQL, err error) {
	p = &postgreSQL{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	u, err1 := url.Parse(given)
	config, err2 := pgx.ParseConfig(given)
	if err1 != nil || err2 != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		// the errors may contain the password
		return p, errors.New("-postgres: it is not a URL such as postgres://admin@127.0.0.1:5432/postgres")
	}
	p.given, p.config = *u, config
	if err := p.create(ctx); err != nil {
		return p, fmt.Errorf("the server at %s: %w", p.addr(), err)
	}
	p.shop.DB = p.open(database)
	if err := p.fill(ctx, `COLLATE "C"`); err != nil {
		return p, err
	}
	for _, s := range []string{"ALTER TABLE products REPLICA IDENTITY FULL",
		"CREATE PUBLICATION " + database + " FOR TABLE products"} {
		if _, err := p.ExecContext(ctx, s); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *postgreSQL) addr() string { return fmt.Sprintf("%s:%d", p.config.Host, p.config.Port) }

func (p *postgreSQL) open(database string) *sqlx.DB {
	c := p.config.Copy()
	c.Database = database
	return sqlx.NewDb(stdlib.OpenDB(*c), "pgx")
}

// url returns the URL of the database.
func (p *postgreSQL) url(user *url.Userinfo) string {
	u := p.given
	u.User, u.Path = user, "/"+database
	return u.String()
}

func (p *postgreSQL) server() *server {
	// a password would be visible in lists of processes
	c := client{name: "psql", programs: []string{"psql"}, execute: "--command=",
		args: []string{"--no-psqlrc", p.url(url.User(p.config.User))}}
	if p.config.Password != "" {
		c.env = []string{"PGPASSWORD=" + p.config.Password}
	}
	source := func() (canal.Source, error) {
		return pglogical.New(pglogical.Options{ConnString: p.url(p.given.User), Slot: database, Publication: database})
	}
	return &server{p.shop, p.version, p.addr(), "its logical replication", "public", source, c, p.close}
}

// create creates the database. It fails if the database exists, because the program would drop it.
func (p *postgreSQL) create(ctx context.Context) (err error) {
	db := p.open(p.config.Database)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.GetContext(ctx, &p.version,
		"SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)"); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "CREATE DATABASE "+database)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42P04" { // duplicate_database
		return fmt.Errorf("the database %s already exists, and this program would drop it at the end: drop it "+
			"yourself if it is not needed", database)
	}
	p.created = err == nil
	return err
}

// close drops the slot and the database, also when ctx has ended. The server may need a moment to
// notice that nothing reads the slot.
func (p *postgreSQL) close(ctx context.Context) (err error) {
	if p.shop.DB != nil {
		defer func() { err = errors.Join(err, p.Close()) }()
	}
	if !p.created {
		return nil
	}
	db := p.open(p.config.Database)
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for {
		_, err = db.ExecContext(ctx,
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", database)
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "55006" { // object_in_use
			break
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "DROP DATABASE "+database+" WITH (FORCE)")
	return err
}
