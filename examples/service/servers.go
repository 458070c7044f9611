package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

type config struct {
	database     string // a DSN without the password; "": SQLite
	redis        string // host:port; "": embedded
	passwordFile string // "": the database asks for no password
}

// password returns the password of the database's user as it is now.
func (c config) password(context.Context) (string, error) {
	if c.passwordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.passwordFile)
	return strings.TrimSpace(string(text)), err
}

func (c config) openDatabase() (*database, error) {
	switch {
	case strings.HasPrefix(c.database, "postgres"):
		return c.openPostgres()
	case c.database != "":
		return c.openMySQL()
	}
	file := filepath.Join(os.TempDir(), "cacheaside-service.db")
	slog.Info("database: SQLite. It has no log, so the cache does not see what other programs write", "file", file)
	return openSQLite(file)
}

func openSQLite(file string) (*database, error) {
	db, err := sqlx.Open("sqlite", "file:"+file+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_txlock=immediate")
	return &database{DB: db}, err
}

// isDuplicate reports whether a unique index has refused a row.
func isDuplicate(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "23505"
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number == 1062
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// openRedis returns a client, and what closes it.
func (c config) openRedis() (*redis.Client, func(), error) {
	stop := func() {}
	if c.redis == "" {
		slog.Info("Redis: embedded. It ends with this process")
		server, err := miniredis.Run()
		if err != nil {
			return nil, nil, err
		}
		c.redis, stop = server.Addr(), server.Close
	}
	rdb := redis.NewClient(&redis.Options{Addr: c.redis, ContextTimeoutEnabled: true})
	return rdb, func() { _ = rdb.Close(); stop() }, nil
}
