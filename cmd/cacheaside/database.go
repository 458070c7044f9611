package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

const (
	mysqlVariable    = "CACHEASIDE_MYSQL_DSN"
	postgresVariable = "CACHEASIDE_POSTGRES_DSN"
)

// dsn is how to reach a database, and where that was given.
type dsn struct {
	text, where string
	postgres    bool
}

// onDatabase calls f with the database. The DSN is in a file, or in an environment variable; an
// empty variable means the default ones. A DSN in another variable is one of PostgreSQL if it is a
// URL.
func (t *tool) onDatabase(ctx context.Context, variable string, f func(ctx context.Context, db *sqlx.DB) error) error {
	d, err := t.dsn(variable)
	if err != nil {
		return err
	}
	db, err := t.open(d)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(2)
	defer db.Close() //nolint:errcheck // nothing is to be done about it
	err = f(ctx, db)
	if _, slow := errors.AsType[*slowError](err); !slow && errors.Is(err, context.DeadlineExceeded) {
		return &slowError{"the database", t.timeout, err}
	}
	return err
}

// onlyOn is onDatabase for a command that is about one kind of server.
func (t *tool) onlyOn(
	ctx context.Context, dialect sqloutbox.Dialect, instead string, f func(ctx context.Context, db *sqlx.DB) error,
) error {
	return t.onDatabase(ctx, "", func(ctx context.Context, db *sqlx.DB) error {
		if dialectOf(db) != dialect {
			return usagef("the DSN is of another kind of database; see %q", "cacheaside help "+instead)
		}
		return f(ctx, db)
	})
}

// dialectOf returns the dialect of a database of onDatabase.
func dialectOf(db *sqlx.DB) sqloutbox.Dialect {
	if db.DriverName() == "pgx" {
		return sqloutbox.Postgres
	}
	return sqloutbox.MySQL
}

func (t *tool) open(d dsn) (*sqlx.DB, error) {
	if d.postgres {
		config, err := pgx.ParseConfig(d.text)
		if err != nil { // the error may contain parts of the DSN
			return nil, usagef("%s: not a DSN such as postgres://user:password@host:5432/database", d.where)
		}
		config.ConnectTimeout = cmp.Or(config.ConnectTimeout, t.timeout)
		return sqlx.NewDb(stdlib.OpenDB(*config), "pgx"), nil
	}
	config, err := mysql.ParseDSN(d.text)
	if err != nil {
		return nil, usagef("%s: not a DSN such as user:password@tcp(host:3306)/database", d.where)
	}
	config.Timeout = cmp.Or(config.Timeout, t.timeout)
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, usagef("%s: the driver refuses a value in the DSN", d.where)
	}
	return sqlx.NewDb(sql.OpenDB(connector), "mysql"), nil
}

// dsn returns the DSN of a variable, or that of the flags, or that of the default variables.
func (t *tool) dsn(variable string) (dsn, error) {
	if variable != "" {
		d := dsn{text: t.env(variable), where: escape(variable)}
		if d.text == "" {
			return d, usagef("the database is missing: put its DSN into %s", d.where)
		}
		d.postgres = strings.HasPrefix(d.text, "postgres://") || strings.HasPrefix(d.text, "postgresql://")
		return d, nil
	}
	switch {
	case t.mysqlFile != "" && t.postgresFile != "":
		return dsn{}, usagef("--mysql-dsn-file, --postgres-dsn-file: only one of them")
	case t.mysqlFile != "":
		text, err := readSecret("--mysql-dsn-file", t.mysqlFile)
		return dsn{text: text, where: "--mysql-dsn-file"}, err
	case t.postgresFile != "":
		text, err := readSecret("--postgres-dsn-file", t.postgresFile)
		return dsn{text, "--postgres-dsn-file", true}, err
	}
	mysqlText, postgresText := t.env(mysqlVariable), t.env(postgresVariable)
	switch {
	case mysqlText != "" && postgresText != "":
		return dsn{}, usagef("%s, %s: only one of them", mysqlVariable, postgresVariable)
	case mysqlText != "":
		return dsn{text: mysqlText, where: mysqlVariable}, nil
	case postgresText != "":
		return dsn{postgresText, postgresVariable, true}, nil
	}
	return dsn{}, usagef("the database is missing: put its DSN into %s, such as "+
		"user:password@tcp(host:3306)/database, or into %s, such as postgres://user:password@host:5432/database, or "+
		"into a file for --mysql-dsn-file or --postgres-dsn-file", mysqlVariable, postgresVariable)
}
