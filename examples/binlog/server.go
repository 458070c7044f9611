package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// database is the name of the database that the program creates, and drops at the end.
const database = "cacheaside_binlog_example"

// server is the database whose changes are read.
type server struct {
	shop
	version string // "MariaDB 10.11.6"
	addr    string
	log     string // "the binary log"
	schema  string // that of the table, as source names it
	source  func() (canal.Source, error)
	client  client
	close   func(context.Context) error // drops the database, also when the context has ended
}

// open opens the database that c names.
func open(ctx context.Context, c config) (*server, error) {
	if c.postgres != "" {
		p, err := openPostgres(ctx, c.postgres)
		if err != nil {
			return nil, err
		}
		return p.server(), nil
	}
	m, err := openMariaDB(ctx, c)
	if err != nil {
		return nil, err
	}
	return m.server(), nil
}

// mariaDB is the server whose binary log is read.
type mariaDB struct {
	mysqlbinlog.Options // how to reach it
	shop

	version string // "MariaDB 10.11.6"
	stop    func() // nil if the program has not started the server
	created bool
}

// openMariaDB starts a server or connects to the one at -addr, and creates the database.
func openMariaDB(ctx context.Context, c config) (m *mariaDB, err error) {
	m = &mariaDB{Options: mysqlbinlog.Options{Addr: c.addr, User: c.user, Password: c.password}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close(ctx))
		}
	}()
	if c.addr == "" {
		m.User, m.Password = "root", ""
		if m.Addr, m.stop, err = testenv.RunMariaDB(ctx); err != nil {
			return m, fmt.Errorf("the example's own MariaDB: %w (on Debian and Ubuntu: sudo apt-get install "+
				"mariadb-server), or name your own server with -addr", err)
		}
	}
	if err := m.create(ctx); err != nil {
		return m, fmt.Errorf("the server at %s: %w", m.Addr, err)
	}
	if m.shop.DB, err = m.open(database); err != nil {
		return m, err
	}
	return m, m.fill(ctx, "CHARACTER SET ascii COLLATE ascii_bin")
}

func (m *mariaDB) server() *server {
	host, port, _ := net.SplitHostPort(m.Addr) // valid: the program is connected to it
	c := client{name: "mariadb", programs: []string{"mariadb", "mysql"}, execute: "--execute=", one: true,
		args: []string{"--no-defaults", "--protocol=tcp", "--host=" + host, "--port=" + port, "--user=" + m.User,
			database}}
	if m.Password != "" {
		c.env = []string{"MYSQL_PWD=" + m.Password}
	}
	source := func() (canal.Source, error) { return mysqlbinlog.New(m.Options) }
	return &server{m.shop, m.version, m.Addr, "the binary log", database, source, c, m.close}
}

func (m *mariaDB) open(database string) (*sqlx.DB, error) {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.Passwd, c.DBName = "tcp", m.Addr, m.User, m.Password, database
	return sqlx.Open("mysql", c.FormatDSN())
}

// create creates the database. It fails if the database exists, because the program would drop it.
func (m *mariaDB) create(ctx context.Context) (err error) {
	db, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.GetContext(ctx, &m.version, "SELECT VERSION()"); err != nil {
		return err
	}
	number, rest, _ := strings.Cut(m.version, "-")
	m.version = "MySQL " + number
	if strings.Contains(rest, "MariaDB") {
		m.version = "MariaDB " + number
	}
	_, err = db.ExecContext(ctx, "CREATE DATABASE "+database)
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok && e.Number == 1007 { // ER_DB_CREATE_EXISTS
		return fmt.Errorf("the database %s already exists, and this program would drop it at the end: drop it "+
			"yourself if it is not needed", database)
	}
	m.created = err == nil
	return err
}

// close drops the database and stops the server, also when ctx has ended.
func (m *mariaDB) close(ctx context.Context) (err error) {
	if m.stop != nil {
		defer m.stop()
	}
	if m.shop.DB != nil {
		defer func() { err = errors.Join(err, m.Close()) }()
	}
	if !m.created || m.stop != nil {
		return nil
	}
	db, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, err = db.ExecContext(ctx, "DROP DATABASE "+database)
	return err
}

// redisServer is the Redis that all processes share.
type redisServer struct {
	addr     string
	embedded *miniredis.Miniredis // nil if a real one is used
}

func openRedis(ctx context.Context, addr string) (*redisServer, error) {
	if addr == "" {
		mini, err := miniredis.Run() // on a free port of 127.0.0.1; its keys do not expire, which does not matter here
		if err != nil {
			return nil, err
		}
		return &redisServer{addr: mini.Addr(), embedded: mini}, nil
	}
	s := &redisServer{addr: addr}
	rdb := s.client()
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("the Redis at %s: %w", addr, err)
	}
	return s, nil
}

func (r *redisServer) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.addr, ContextTimeoutEnabled: true})
}

func (r *redisServer) String() string {
	if r.embedded != nil {
		return "an embedded Redis"
	}
	return "the Redis at " + r.addr
}

// close removes the keys that begin with prefix.
func (r *redisServer) close(ctx context.Context, prefix string) error {
	if r.embedded != nil {
		r.embedded.Close()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	rdb := r.client()
	defer rdb.Close()
	var errs []error
	keys := rdb.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		errs = append(errs, rdb.Unlink(ctx, keys.Val()).Err())
	}
	return errors.Join(append(errs, keys.Err())...)
}
