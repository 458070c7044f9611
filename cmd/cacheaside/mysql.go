package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
)

const dsnVariable = "CACHEASIDE_MYSQL_DSN"

// onMySQL calls f with the database. The DSN is in a file, or in an environment variable; an
// empty variable means the default one.
func (t *tool) onMySQL(ctx context.Context, variable string, f func(ctx context.Context, db *sqlx.DB) error) error {
	dsn, where, err := t.dsn(variable)
	if err != nil {
		return err
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil { // the error may contain parts of the DSN
		return usagef("%s: not a DSN such as user:password@tcp(host:3306)/database", where)
	}
	config.Timeout = cmp.Or(config.Timeout, t.timeout)
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return usagef("%s: the driver refuses a value in the DSN", where)
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	db.SetMaxOpenConns(2)
	defer db.Close() //nolint:errcheck // nothing is to be done about it
	return t.mysqlError(f(ctx, db))
}

func (t *tool) dsn(variable string) (dsn, where string, err error) {
	if t.dsnFile != "" && variable == "" {
		dsn, err = readSecret("--mysql-dsn-file", t.dsnFile)
		return dsn, "--mysql-dsn-file", err
	}
	variable = cmp.Or(variable, dsnVariable)
	if dsn = t.env(variable); dsn == "" {
		return "", "", usagef("the database is missing: put its DSN, such as user:password@tcp(host:3306)/database, into %s, or into a file for --mysql-dsn-file", escape(variable))
	}
	return dsn, escape(variable), nil
}

func (t *tool) mysqlError(err error) error {
	if _, slow := errors.AsType[*slowError](err); !slow && errors.Is(err, context.DeadlineExceeded) {
		return &slowError{"the database", t.timeout, err}
	}
	return err
}
