package main

import (
	"context"
	"database/sql"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
)

// snippet: connect
// openMySQL returns a pool, and the source that reads the binary log. Both ask for the password
// before each new connection.
func (c config) openMySQL() (*database, error) {
	parsed, err := mysql.ParseDSN(c.database)
	if err != nil {
		return nil, err
	}
	err = parsed.Apply(mysql.BeforeConnect(func(ctx context.Context, conn *mysql.Config) (err error) {
		conn.Passwd, err = c.password(ctx)
		return err
	}))
	if err != nil {
		return nil, err
	}
	source, err := mysqlbinlog.New(mysqlbinlog.Options{
		Addr: parsed.Addr, User: parsed.User, PasswordFunc: c.password, TLS: parsed.TLS,
	})
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(parsed)
	if err != nil {
		return nil, err
	}
	return &database{sqlx.NewDb(sql.OpenDB(connector), "mysql"), parsed.DBName, source}, nil
}

// end
