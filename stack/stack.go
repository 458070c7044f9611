package stack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// Options are the settings of the parts. nil and the zero value are good defaults.
type Options struct {
	// Cache are the settings of the Cache. Set its Prefix. All names that the other parts have in
	// Redis and in the database begin with it, so that services can share both.
	Cache *cacheaside.Options

	// Outbox are the settings of the outbox.
	Outbox *sqloutbox.Options

	// Writer are the settings of the Writer. Its Queue is the outbox.
	Writer *consistency.Options

	// Lock are the settings of the Locker. Default of its Prefix: that of the Cache, and ":lock:".
	Lock *lock.Options
}

// A Stack is the parts of one process of a service. It is safe for concurrent use after Follow and
// Filter were called.
type Stack struct {
	Cache  *cacheaside.Cache
	Outbox *sqloutbox.Outbox
	Writer *consistency.Writer // Run starts its relay

	// Locker has its locks in a table of PostgreSQL, MySQL or MariaDB, because Redis can lose a
	// lock when it evicts keys or fails over, and the database is needed anyway. With SQLite the
	// locks are in Redis.
	Locker *lock.Locker

	// Consumer follows the log of the database. It is nil before Follow.
	Consumer *canal.Consumer

	db      *sqlx.DB
	rdb     redis.UniversalClient
	prefix  string
	noRelay bool
	tables  []func(context.Context) error
	filters []filter
	closers []func() error // last first
	closing sync.Once
	closed  error
}

// A filter is a Bloom filter, the keys of all its rows, and the settings of its rebuilds.
type filter struct {
	*bloom.Replica
	rows     bloom.Source
	maintain bloom.MaintainOptions
}

// FilterOptions are the settings of one filter. nil and the zero value are good defaults.
type FilterOptions struct {
	// Filter are the settings of the filter. Default of its Prefix: that of the Cache.
	Filter *bloom.Options

	// FalsePositives is the share of absent keys for which the filter returns "maybe". Default:
	// 0.01. See bloom.NewRedis.
	FalsePositives float64

	// Maintain are the settings of its Maintain, which Run runs. If the log has a gap, the filter
	// is rebuilt with the same RebuildOptions, without a wait, and also if it has fewer keys then.
	Maintain *bloom.MaintainOptions
}

// New makes the parts. It does no I/O. The kind of the database, PostgreSQL, MySQL, MariaDB or
// SQLite, is that of the driver of db. The caller calls Run or Close, and then closes db and rdb,
// which must have ContextTimeoutEnabled set.
func New(db *sqlx.DB, rdb redis.UniversalClient, options *Options) (_ *Stack, err error) {
	if db == nil || rdb == nil {
		return nil, errors.New("stack: the database or the Redis client is nil")
	}
	o := value(options)
	s := &Stack{db: db, rdb: rdb, prefix: cmp.Or(value(o.Cache).Prefix, "cacheaside")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("stack: %w", err), s.Close())
		}
	}()
	if err := s.openLocker(o.Lock); err != nil {
		return nil, err
	}
	if s.Cache, err = cacheaside.New(rdb, o.Cache); err != nil {
		return nil, err
	}
	s.closeLast(s.Cache.Close)
	if err := s.openWriter(o); err != nil {
		return nil, err
	}
	return s, nil
}

// openLocker makes the Locker of the kind of the database.
func (s *Stack) openLocker(options *lock.Options) (err error) {
	o := value(options)
	o.Prefix = cmp.Or(o.Prefix, s.prefix+":lock:")
	create := func(context.Context) error { return nil }
	switch sqldb.KindOf(s.db) {
	case sqldb.Postgres:
		settings := &pglock.Options{Options: o}
		s.Locker, err = pglock.New(s.db.DB, settings)
		create = func(ctx context.Context) error { return pglock.CreateTable(ctx, s.db.DB, settings) }
	case sqldb.MySQL:
		settings := &mysqllock.Options{Options: o}
		s.Locker, err = mysqllock.New(s.db.DB, settings)
		create = func(ctx context.Context) error { return mysqllock.CreateTable(ctx, s.db.DB, settings) }
	default:
		s.Locker, err = lock.NewRedis(s.rdb, &o)
	}
	if err == nil {
		s.tables = append(s.tables, create)
		s.closeLast(s.Locker.Close)
	}
	return err
}

// openWriter makes the outbox and its Writer.
func (s *Stack) openWriter(o Options) (err error) {
	dialects := map[sqldb.Kind]sqloutbox.Dialect{
		sqldb.Postgres: sqloutbox.Postgres, sqldb.MySQL: sqloutbox.MySQL, sqldb.SQLite: sqloutbox.SQLite,
	}
	dialect, ok := dialects[sqldb.KindOf(s.db)]
	if !ok {
		return fmt.Errorf("the driver %q is none of PostgreSQL, MySQL, MariaDB and SQLite", s.db.DriverName())
	}
	if s.Outbox, err = sqloutbox.New(s.db, dialect, o.Outbox); err != nil {
		return err
	}
	s.tables = append(s.tables, s.Outbox.CreateTable)
	writer := value(o.Writer)
	writer.Queue = s.Outbox
	// The relay would find no table before CreateTables.
	s.noRelay, writer.NoRelay = writer.NoRelay, true
	if s.Writer, err = consistency.NewWriter(s.db, s.Cache, &writer); err == nil {
		s.closeLast(s.Writer.Close)
	}
	return err
}

// Filter returns a Bloom filter for LoaderOptions.Filter, for about capacity keys. rows lists the
// keys of all rows: see bloom.Table. Run builds and maintains it, and the consumer of Follow adds
// the rows of other programs. name is unique within the Prefix of the Cache. Call Filter before
// Follow and Run. A nil options means the defaults.
func (s *Stack) Filter(
	name string, capacity uint64, rows bloom.Source, options *FilterOptions,
) (*bloom.Replica, error) {
	switch {
	case rows == nil:
		return nil, errors.New("stack: Filter: the source of the rows is nil")
	case s.Consumer != nil:
		return nil, errors.New("stack: Filter was called after Follow, whose consumer must know all filters")
	}
	o := value(options)
	settings, maintain := value(o.Filter), value(o.Maintain)
	settings.Prefix = cmp.Or(settings.Prefix, s.prefix)
	shared, err := bloom.NewRedis(s.rdb, name, capacity, cmp.Or(o.FalsePositives, 0.01), &settings)
	if err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	// Filters are closed after the Cache, which is in front of them in closers.
	s.closers = slices.Insert(s.closers, 0, shared.Close)
	replica, err := bloom.NewReplica(shared)
	if err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	s.filters = append(s.filters, filter{replica, rows, maintain})
	return replica, nil
}

// value returns *options, or the zero value if options is nil.
func value[T any](options *T) (v T) {
	if options != nil {
		v = *options
	}
	return v
}

// Follow makes the Consumer, which Run runs. source is that of package pglogical or mysqlbinlog,
// and bindings say which keys and groups a changed row has. One process of the service consumes. If
// it is killed, another takes over when its lock has expired: after lock.Options.TTL, 10 s.
//
// A nil options, and zero values in it, mean the defaults of canal.Options, except: Locker is that
// of the Stack, Parking is the table cacheaside_parked, OnGap rebuilds the filters of Filter, and
// RetrySetup is always set, so that a database whose log cannot be read does not end the service.
// Consumer.Health and an alert then have the statements that repair it.
func (s *Stack) Follow(source canal.Source, bindings []canal.Binding, options *canal.Options) error {
	if s.Consumer != nil {
		return errors.New("stack: Follow was called before")
	}
	checkpoint, err := canal.NewSQLCheckpoint(s.db, &canal.SQLCheckpointOptions{Name: checkpointName(s.prefix)})
	if err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	parked, err := parking.NewTable(s.db, nil)
	if err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	o := value(options)
	o.RetrySetup = true
	o.Locker = cmp.Or(o.Locker, s.Locker)
	if o.Parking == nil {
		o.Parking = parked
		s.tables = append(s.tables, parked.CreateTable)
	}
	if o.OnGap == nil && len(s.filters) > 0 {
		o.OnGap = s.rebuild
	}
	s.tables = append(s.tables, checkpoint.CreateTable)
	s.Consumer, err = canal.NewConsumer(s.Cache, source, checkpoint, bindings, &o)
	if err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	return nil
}

// checkpointName returns the prefix as the name of the checkpoint, which has at most 64 bytes and
// no capital letters. Another prefix is replaced by its beginning and a hash.
func checkpointName(prefix string) string {
	lower := strings.ToLower(prefix)
	if lower == prefix && len(prefix) <= 64 {
		return prefix
	}
	hash := sha256.Sum256([]byte(prefix))
	return fmt.Sprintf("%.40s-%x", lower, hash[:8])
}

// rebuild rebuilds the filters. The consumer adds all later rows to them.
func (s *Stack) rebuild(ctx context.Context) error {
	for _, f := range s.filters {
		o := value(f.maintain.Rebuild)
		o.AllowFewer, o.Settle = true, -1
		if _, err := f.Rebuild(ctx, f.rows, &o); err != nil {
			return err
		}
	}
	return nil
}

// CreateTables creates the tables of the parts that do not exist: of the outbox, the locks, and
// after Follow the checkpoint and the parked changes. In production let a migration create them:
// `cacheaside schema` prints the statements.
func (s *Stack) CreateTables(ctx context.Context) error {
	for _, create := range s.tables {
		if err := create(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run runs the relay of the Writer and the Consumer, maintains the filters, and calls each of serve
// in a goroutine, with a context that ends with ctx, or when one of them returns an error. The
// tables must exist. It returns when all have
// returned, and has then closed the parts. Its error is the first that occurred, or nil if all
// ended without one after ctx had ended.
//
// A server finishes its requests in serve after its context has ended; the parts work until then.
func (s *Stack) Run(ctx context.Context, serve ...func(context.Context) error) error {
	if !s.noRelay {
		if err := s.Writer.StartRelay(); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	all, running := errgroup.WithContext(ctx)
	if s.Consumer != nil {
		all.Go(func() error { return s.Consumer.Run(running) })
	}
	for _, f := range s.filters {
		all.Go(func() error {
			if err := f.Maintain(running, f.rows, &f.maintain); running.Err() == nil {
				return err
			}
			return nil
		})
	}
	for _, f := range serve {
		all.Go(func() error { return f(running) })
	}
	all.Go(func() error { <-running.Done(); return nil })
	err := all.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		err = nil
	}
	return errors.Join(err, s.Close())
}

// Close closes the parts, the last opened first. Call it if Run is not called. It may be called
// again, and returns the same error.
func (s *Stack) Close() error {
	s.closing.Do(func() {
		var errs []error
		for _, f := range slices.Backward(s.closers) {
			errs = append(errs, f())
		}
		s.closed = errors.Join(errs...)
	})
	return s.closed
}

// closeLast makes Close call f before the functions of earlier calls.
func (s *Stack) closeLast(f func() error) { s.closers = append(s.closers, f) }
