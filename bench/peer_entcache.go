//go:build accept

package bench

import (
	"cmp"
	"context"
	stdsql "database/sql"
	"errors"
	"sync"
	"time"

	"ariga.io/entcache"
	"entgo.io/ent/dialect"
	"entgo.io/ent/dialect/sql"
	"github.com/go-redis/redis/v8"
)

// entcache caches the results of SQL queries for ent, an ORM: it is a dialect.Driver around
// another. Here the other driver gets its rows from the load function, so a miss costs no more than
// in other peers, and the query and the scan of its four columns are those that ent makes for a
// row. The settings are those of "Multi Level Cache" in its README, NewLRU and NewRedis:
// https://github.com/ariga/entcache/blob/v0.1.0/README.md. WithKey names a row, because the default
// name is a hash of 64 bits. Its codec is encoding/gob and cannot be changed. An empty result is
// cached like a row, with the same TTL. entcache has no batch read: the query for a list of keys
// would be an entry of its own. Loads are not shared. A row that it finds in Redis does not get
// into memory. It deletes an entry by Evict, which also queries the database. This peer calls Del
// of its levels instead. It has some features that cacheaside lacks: it caches any query of ent
// without code for it, and has a cache for each request.
//
// NewLRU moves an entry in a list while it holds its lock for readers only, which is not safe for
// concurrent use. So here each call of it has a lock, and rows stay in memory for MemoryTTL. The
// client is go-redis 8. On a cluster of Redis 7, it cannot parse the reply to COMMAND, and sends it
// again before each command, so entcache is not measured there.
func init() {
	register(Peer{
		Name: "entcache", Module: "ariga.io/entcache", Memory: true, Redis: true, Nulls: true, Unpromoted: true,
		Settings: "NewLRU (with a lock around it) and NewRedis, WithKey, gob; a driver of ent over the load function",
		Has:      "any query of ent, a cache for each request",
		Open: func(c Config) (Cache, error) {
			rdb := newClient8(c)
			inRedis := entcache.NewRedis(rdb)
			e := &entCache{rdb: rdb, levels: []entcache.AddGetDeleter{inRedis}}
			if !c.NoMemory {
				ttl := cmp.Or(c.MemoryTTL, c.TTL, time.Hour)
				e.levels = []entcache.AddGetDeleter{&lockedLRU{lru: entcache.NewLRU(cmp.Or(c.MemoryRows, 100_000)),
					ttl: ttl}, inRedis}
			}
			e.driver = entcache.NewDriver(loadDriver{c}, entcache.TTL(cmp.Or(c.TTL, time.Hour)),
				entcache.Levels(e.levels...))
			return e, nil
		},
	})
}

// newClient8 returns a client of go-redis 8 with the timeouts of newClient.
func newClient8(c Config) *redis.Client {
	o := &redis.Options{Addr: c.Redis}
	if c.Patient {
		o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 10*time.Second, 10*time.Second, 20*time.Second
	}
	return redis.NewClient(o)
}

type entCache struct {
	rdb    *redis.Client
	levels []entcache.AddGetDeleter
	driver *entcache.Driver
}

func (e *entCache) Get(ctx context.Context, key string) (_ *Row, err error) {
	var rows sql.Rows
	err = e.driver.Query(entcache.WithKey(ctx, "ent:"+key),
		"SELECT `id`, `name`, `text`, `price` FROM `rows` WHERE `key` = ? LIMIT 2", []any{key}, &rows)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if _, err := rows.Columns(); err != nil { // as ent does
		return nil, err
	}
	if !rows.Next() {
		return nil, cmp.Or(rows.Err(), ErrNotFound)
	}
	r := new(Row)
	return r, rows.Scan(&r.ID, &r.Name, &r.Text, &r.Price)
}

func (e *entCache) Invalidate(ctx context.Context, key string) error {
	var failed []error
	for _, level := range e.levels {
		failed = append(failed, level.Del(ctx, "ent:"+key))
	}
	return errors.Join(failed...)
}

func (e *entCache) Close() error { return e.rdb.Close() }

// lockedLRU makes NewLRU safe for concurrent use, and limits its TTL.
type lockedLRU struct {
	mu  sync.Mutex
	lru *entcache.LRU
	ttl time.Duration
}

func (l *lockedLRU) Get(ctx context.Context, key entcache.Key) (*entcache.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lru.Get(ctx, key)
}

func (l *lockedLRU) Add(ctx context.Context, key entcache.Key, e *entcache.Entry, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lru.Add(ctx, key, e, min(ttl, l.ttl))
}

func (l *lockedLRU) Del(ctx context.Context, key entcache.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lru.Del(ctx, key)
}

// loadDriver is the database: a query for a key returns the row that the load function returns.
type loadDriver struct{ config Config }

func (l loadDriver) Query(ctx context.Context, _ string, args, v any) error {
	row, err := l.config.Load(ctx, args.([]any)[0].(string))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	v.(*sql.Rows).ColumnScanner = &loadedRows{row: row}
	return nil
}

func (loadDriver) Exec(context.Context, string, any, any) error { return errors.ErrUnsupported }
func (loadDriver) Tx(context.Context) (dialect.Tx, error)       { return nil, errors.ErrUnsupported }
func (loadDriver) Close() error                                 { return nil }
func (loadDriver) Dialect() string                              { return dialect.MySQL }
func (*loadedRows) Close() error                                { return nil }
func (*loadedRows) ColumnTypes() ([]*stdsql.ColumnType, error)  { return nil, errors.ErrUnsupported }
func (*loadedRows) Columns() ([]string, error)                  { return []string{"id", "name", "text", "price"}, nil }
func (*loadedRows) Err() error                                  { return nil }
func (*loadedRows) NextResultSet() bool                         { return false }

// loadedRows is the result of a query: a row, or none.
type loadedRows struct{ row, scanned *Row }

func (l *loadedRows) Next() bool {
	l.row, l.scanned = nil, l.row
	return l.scanned != nil
}

// Scan calls the Scan methods of its destinations with what a database's driver returns.
func (l *loadedRows) Scan(dest ...any) error {
	for i, v := range []any{l.scanned.ID, l.scanned.Name, l.scanned.Text, l.scanned.Price} {
		if err := dest[i].(stdsql.Scanner).Scan(v); err != nil {
			return err
		}
	}
	return nil
}
