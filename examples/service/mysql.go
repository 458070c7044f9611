package main

import (
	"context"
	"database/sql"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
)

// oneSpelling makes the database compare texts as the cache compares keys. With a collation that
// ignores case, it would find a row by several spellings, each of which is cached by its own key.
const oneSpelling = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

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
	parsed.ClientFoundRows = true // RowsAffected counts a row that an UPDATE leaves as it is
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
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	return &database{DB: db, schema: parsed.DBName, source: source, create: oneSpelling}, nil
}

// end
