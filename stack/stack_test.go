package stack_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/stack"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// logSource is a Source without changes. If err is set, the log cannot be read.
type logSource struct{ err error }

func (l logSource) Run(ctx context.Context, _ event.Need, _ chan<- event.Batch) error {
	if l.err != nil {
		return l.err
	}
	<-ctx.Done()
	return ctx.Err()
}

// world is a Stack on each kind of database.
type world struct {
	*stack.Stack
	db    *sqlx.DB
	users *cacheaside.Loader[int64, string]
}

func onEach(t *testing.T, f func(t *testing.T, w *world)) {
	for name, open := range map[string]func(t testing.TB) *sql.DB{
		"pgx":   func(t testing.TB) *sql.DB { return testenv.SharedPostgres(t).DB(t) },
		"mysql": func(t testing.TB) *sql.DB { return testenv.MariaDB.Shared(t).DB(t) },
	} {
		t.Run(name, func(t *testing.T) { f(t, newWorld(t, sqlx.NewDb(open(t), name))) })
	}
}

func newWorld(t *testing.T, db *sqlx.DB) *world {
	t.Helper()
	s, err := stack.New(db, testenv.SharedRedis(t).Client(t), &stack.Options{
		Cache: &cacheaside.Options{Prefix: "Shop-" + strings.ToLower(t.Name()[len(t.Name())-2:])},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w := &world{Stack: s, db: db}
	w.users, err = cacheaside.NewLoader(s.Cache, "user", func(ctx context.Context, id int64) (name string, err error) {
		err = db.GetContext(ctx, &name, db.Rebind("SELECT name FROM users WHERE id = ?"), id)
		return name, err
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) bindings() []canal.Binding {
	return []canal.Binding{canal.Bind(w.users, "public", "users", canal.IntColumn[int64]("id"))}
}

// TestRun: the parts work with the tables that CreateTables has made, while Run runs. When its
// context has ended, they work until serve has returned, and are closed after that.
func TestRun(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.db.MustExec("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(100) NOT NULL)")
		filter, err := w.Filter("users", 100, bloom.Table[int64](w.db, "users", "id"),
			&stack.FilterOptions{FalsePositives: 0.001, Filter: &bloom.Options{MaxStaleness: time.Second},
				Maintain: &bloom.MaintainOptions{Rebuild: &bloom.RebuildOptions{Capacity: 200}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Follow(logSource{}, w.bindings(), nil); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time there is nothing to do
			if err := w.CreateTables(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		err = w.Run(ctx, func(ctx context.Context) error {
			testenv.Eventually(t, "the consumer is active", func() bool { return w.Consumer.Stats().Active })
			if _, err := filter.Rebuild(ctx, bloom.Table[int64](w.db, "users", "id"),
				&bloom.RebuildOptions{AllowFewer: true, Settle: -1}); err != nil &&
				!errors.Is(err, bloom.ErrRebuilding) {
				return err
			}
			stop()
			<-ctx.Done()
			ctx = context.WithoutCancel(ctx)
			lease, err := w.Locker.Acquire(ctx, "job", nil)
			if err != nil {
				return err
			}
			err = w.Writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO users VALUES (42, 'Ada')")
				return err
			}, w.users.Key(42))
			if name, err := w.users.Get(ctx, 42); name != "Ada" {
				t.Errorf("%q, %v", name, err)
			}
			return errors.Join(err, lease.Release())
		})
		if err != nil {
			t.Error(err)
		}
		if _, err := w.users.Get(t.Context(), 42); !errors.Is(err, cacheaside.ErrClosed) {
			t.Errorf("after Run: %v", err)
		}
		if _, err := w.Locker.TryAcquire(t.Context(), "job", nil); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Run: %v", err)
		}
	})
}

// TestFirstStart: the first start of a service, whose database has neither tables nor rows, logs no
// warning.
func TestFirstStart(t *testing.T) {
	var log testenv.Log
	db := sqlx.NewDb(testenv.SharedPostgres(t).DB(t), "pgx")
	redisOptions := testenv.StartRedis(t).Options()
	redisOptions.ContextTimeoutEnabled = true
	rdb := redis.NewClient(redisOptions)
	t.Cleanup(func() { rdb.Close() })
	s, err := stack.New(db, rdb, &stack.Options{
		Cache:  &cacheaside.Options{Logger: log.Logger()},
		Writer: &consistency.Options{Relay: &consistency.RelayOptions{Logger: log.Logger()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	empty := make(chan struct{}, 10)
	rows := func(context.Context, string) iter.Seq2[string, error] {
		empty <- struct{}{}
		return func(func(string, error) bool) {}
	}
	_, err = s.Filter("users", 100, rows, &stack.FilterOptions{
		Filter:   &bloom.Options{Logger: log.Logger()},
		Maintain: &bloom.MaintainOptions{Rebuild: &bloom.RebuildOptions{Settle: -1}, Check: 100 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // a relay that ran would fail
	if err := s.CreateTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = s.Run(t.Context(), func(context.Context) error {
		testenv.Eventually(t, "the relay has read the outbox", func() bool {
			return s.Writer.Stats().Relay.DepthAge > 0
		})
		<-empty
		<-empty // after the first build has failed
		return errServe
	})
	if !errors.Is(err, errServe) {
		t.Error(err)
	}
	for _, line := range log.Take() {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Error(line)
		}
	}
}

var errServe = errors.New("the port is taken")

// TestRunEnds: an error of serve ends Run, and is what it returns. A log that cannot be read does
// not end it, and is what Health reports.
func TestRunEnds(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		setup := errors.Join(canal.ErrSetup, errors.New("the publication does not exist"))
		if err := w.Follow(logSource{setup}, w.bindings(), nil); err != nil {
			t.Fatal(err)
		}
		if err := w.CreateTables(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := w.Run(t.Context(), func(context.Context) error {
			testenv.Eventually(t, "Health reports the setup", func() bool {
				return errors.Is(w.Consumer.Health(testenv.Hang), canal.ErrSetup)
			})
			return errServe
		})
		if !errors.Is(err, errServe) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestNamesBeginWithThePrefix: services with different prefixes share servers.
func TestNamesBeginWithThePrefix(t *testing.T) {
	redis := testenv.StartRedis(t).Client(t)
	db := sqlx.NewDb(testenv.SharedPostgres(t).DB(t), "pgx")
	for _, prefix := range []string{"", "shop", "Blog"} {
		s, err := stack.New(db, redis, &stack.Options{Cache: &cacheaside.Options{Prefix: prefix}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		one := func(context.Context, int64) (int, error) { return 1, nil }
		users, err := cacheaside.NewLoader(s.Cache, "user", one, nil)
		if err != nil {
			t.Fatal(err)
		}
		binding := canal.Bind(users, "public", "users", canal.IntColumn[int64]("id"))
		if err := s.Follow(logSource{}, []canal.Binding{binding}, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.CreateTables(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The lock of one service is free for the others.
		lease, err := s.Locker.TryAcquire(t.Context(), "report", nil)
		if err != nil {
			t.Fatalf("prefix %q: %v", prefix, err)
		}
		t.Cleanup(func() { _ = lease.Release() })
	}
}

// TestMistakes: what cannot work is refused, with an error that says what it is.
func TestMistakes(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	db, err := sqlx.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for want, open := range map[string]func() (*stack.Stack, error){
		"is nil": func() (*stack.Stack, error) { return stack.New(nil, rdb, nil) },
		"Prefix": func() (*stack.Stack, error) {
			return stack.New(db, rdb, &stack.Options{Cache: &cacheaside.Options{Prefix: "a b"}})
		},
		"the Redis client is nil": func() (*stack.Stack, error) { return stack.New(db, nil, nil) },
		`the driver "other"`: func() (*stack.Stack, error) {
			unknown := sql.OpenDB(other{})
			defer unknown.Close()
			return stack.New(sqlx.NewDb(unknown, "other"), rdb, nil)
		},
	} {
		if s, err := open(); s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	w := newWorld(t, db)
	if _, err := w.Filter("users", 100, nil, nil); err == nil {
		t.Error("Filter accepts a nil source")
	}
	if err := w.Follow(nil, w.bindings(), nil); err == nil {
		t.Error("Follow accepts a nil source")
	}
	if w.Consumer != nil {
		t.Error("there is a Consumer after an error")
	}
	if err := w.Follow(logSource{}, w.bindings(), nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Follow(logSource{}, w.bindings(), nil); err == nil {
		t.Error("a second Follow returns nil")
	}
	if _, err := w.Filter("users", 100, bloom.Table[int64](w.db, "users", "id"), nil); err == nil {
		t.Error("Filter after Follow returns nil")
	}
	if first, second := w.Close(), w.Close(); first != nil || second != nil {
		t.Error(first, second)
	}
}

// other is the connector of a database that the package does not know.
type other struct{}

func (other) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("no connection") }
func (other) Driver() driver.Driver                        { return otherDriver{} }

type otherDriver struct{}

func (otherDriver) Open(string) (driver.Conn, error) { return nil, errors.New("no connection") }
