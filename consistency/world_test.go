package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// long is the life of a lease, and of a hold, that does not end in a test: the longest.
const long = time.Minute

// Row 1 in Redis.
const (
	redisKey = "cacheaside:item:1:{1}"
	holdKey  = redisKey + ":hold"
)

// levels are all of them.
var levels = []Level{Async, Inline, Outbox, Strict}

// setup configures a world.
type setup struct {
	Options                   // NoRelay is added, unless relay is set
	relay   bool              // the Writer has one
	engine  testenv.Engine    // of the database, or postgres; none: SQLite
	sql     *testenv.Database // in place of that of engine
	proxied bool              // the Writer reaches it by a proxy
	// the Writer reaches Redis without a proxy, by a client with the settings that are recommended
	direct   bool
	inMemory bool                           // the queue is, also where it need not be
	cache    cacheaside.Options             // of the writing process; zero time-outs, and lives, are patient ones
	filter   func(*world) cacheaside.Filter // of the loaders
}

// world is a process that writes and reads rows of text, and another one that reads.
type world struct {
	*Writer
	t        testing.TB
	server   *testenv.Redis
	sql      *testenv.Database // nil: SQLite
	writes   *sqlx.DB          // the Writer's
	admin    *sqlx.DB          // past the proxy
	database *testenv.Proxy    // of the Writer, if it is proxied
	dialed   *connections      // of the Writer to that
	redis    *testenv.Proxy    // of the process that writes
	box      TestOutbox        // in any case
	cache    *cacheaside.Cache
	relaying *cacheaside.Cache               // of relays: it is patient
	rows     *cacheaside.Loader[int, string] // of the process that writes
	before   Stats
	other    *cacheaside.Loader[int, string] // of another, without memory
}

func start(t testing.TB, s setup) *world {
	t.Helper()
	x := &world{t: t, server: testenv.SharedRedis(t)}
	if s.engine != "" {
		s.sql = testenv.DatabaseOf(t, s.engine)
	}
	if x.sql = s.sql; x.sql != nil {
		x.admin = x.sql.Open(t)
		x.writes = x.admin
		if s.proxied {
			x.database, x.dialed = testenv.NewProxy(t, x.sql.Addr), &connections{}
			db, err := x.dialed.open(x.sql.Driver, strings.Replace(x.sql.DSN(t), x.sql.Addr, x.database.Addr, 1))
			x.check(err)
			t.Cleanup(func() { db.Close() })
			x.writes = db
		}
	} else {
		x.admin = sqlx.NewDb(sqlite.Open(t), "sqlite")
		x.writes = x.admin
	}
	x.exec("CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100))")
	x.exec("INSERT INTO item VALUES (1, 'old'), (2, 'old')")
	var err error
	x.box, err = NewTestOutbox(x.admin, "", testSpace)
	x.check(err)
	x.check(x.box.CreateTable(t.Context()))
	x.redis = testenv.NewProxy(t, x.server.Addr)
	o := x.server.Options()
	if o.ContextTimeoutEnabled = s.direct; !s.direct {
		o.Addr = x.redis.Addr
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	x.cache = x.newCache(rdb, s.cache)
	x.relaying = x.cache
	if s.cache.RedisTimeout > 0 && s.cache.MemoryBytes < 0 {
		x.relaying = x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1})
	}
	var lo cacheaside.LoaderOptions
	if s.filter != nil {
		lo.Filter = s.filter(x)
	}
	x.rows = x.newLoader(x.cache, &lo)
	x.other = x.newLoader(x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1}), &lo)
	if s.Queue == nil && !s.inMemory {
		s.Queue = x.box
	}
	if s.AsyncDelay == 0 {
		s.AsyncDelay = 50 * time.Millisecond
	}
	s.NoRelay = !s.relay
	x.Writer, err = NewWriter(x.writes, x.cache, &s.Options)
	x.check(err)
	x.grace = 50 * time.Millisecond
	t.Cleanup(func() { x.Close() })
	x.cached()
	return x
}

func (x *world) newCache(rdb redis.UniversalClient, o cacheaside.Options) *cacheaside.Cache {
	x.t.Helper()
	if o.RedisTimeout == 0 {
		o.RedisTimeout, o.ReadTimeout = testenv.Hang, testenv.Hang
	}
	o.LeaseTTL = cmp.Or(o.LeaseTTL, long)
	o.StrictWrites = true
	var c *cacheaside.Cache
	var err error
	if rdb == nil {
		c, err = cacheaside.NewLocal(&o)
	} else {
		c, err = cacheaside.New(rdb, &o)
	}
	x.check(err)
	x.t.Cleanup(func() { c.Close() })
	return c
}

func (x *world) newLoader(c *cacheaside.Cache, o *cacheaside.LoaderOptions) *cacheaside.Loader[int, string] {
	x.t.Helper()
	l, err := cacheaside.NewLoader(c, "item", x.load, o)
	x.check(err)
	return l
}

func (x *world) load(ctx context.Context, id int) (v string, err error) {
	err = x.admin.GetContext(ctx, &v, x.admin.Rebind("SELECT v FROM item WHERE id = ?"), id)
	return v, err
}

func (x *world) check(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *world) exec(statement string, args ...any) {
	x.t.Helper()
	_, err := x.admin.Exec(x.admin.Rebind(statement), args...)
	x.check(err)
}

// set is a write of a row.
func set(id int, v string) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		return execOn(ctx, tx, "UPDATE item SET v = ? WHERE id = ?", v, id)
	}
}

// reset brings the world back to its beginning.
func (x *world) reset() {
	x.t.Helper()
	hook.Store(nil)
	x.exec("UPDATE item SET v = 'old'")
	x.exec("DELETE FROM cacheaside_outbox")
	if x.queueInMemory() && x.relay.Load() == nil {
		x.options.Queue = NewMemoryQueue(0)
	}
	x.check(x.server.Client(x.t).Del(x.t.Context(), holdKey).Err())
	x.eventually("nothing is cached", func() bool {
		ctx := x.t.Context()
		return errors.Join(x.rows.Invalidate(ctx, 1, 2), x.other.Invalidate(ctx, 1, 2)) == nil
	})
	x.before = x.Stats()
	x.redisDown.Store(nil)
	x.cached()
}

// isHeld reports whether row 1 is on hold.
func (x *world) isHeld() bool {
	x.t.Helper()
	n, err := x.server.Client(x.t).Exists(x.t.Context(), holdKey).Result()
	x.check(err)
	return n == 1
}

// counts returns the counters since the last reset.
func (x *world) counts() Stats {
	s, b := x.Stats(), x.before
	return Stats{
		Updates: s.Updates - b.Updates, RolledBack: s.RolledBack - b.RolledBack, Unknown: s.Unknown - b.Unknown,
		HoldsRefused: s.HoldsRefused - b.HoldsRefused, HoldsLost: s.HoldsLost - b.HoldsLost,
		NotStored: s.NotStored - b.NotStored,
		Queued:    s.Queued - b.Queued, Skipped: s.Skipped - b.Skipped, NotQueued: s.NotQueued - b.NotQueued,
	}
}

// invalidated has a relay empty the outbox.
func (x *world) invalidated() {
	x.t.Helper()
	x.relays("the outbox is empty", func() bool { return x.intents() == 0 })
}

// cached has all processes remember row 1 as it is.
func (x *world) cached() {
	x.t.Helper()
	v, err := x.load(x.t.Context(), 1)
	x.check(err)
	x.reads(v)
}

// reads fails unless a read of row 1, in any process, gives v.
func (x *world) reads(v string) {
	x.t.Helper()
	for name, l := range map[string]*cacheaside.Loader[int, string]{"the writing process": x.rows,
		"another process": x.other} {
		if got, err := l.Get(x.t.Context(), 1); got != v || err != nil {
			x.t.Fatalf("%s reads %q, %v; want %q", name, got, err, v)
		}
	}
}

// otherReads fails unless a read of row 1, in the other process, gives v.
func (x *world) otherReads(v string) {
	x.t.Helper()
	if got, err := x.other.Get(x.t.Context(), 1); got != v || err != nil {
		x.t.Fatalf("another process reads %q, %v; want %q", got, err, v)
	}
}

// isStored reports whether Redis has an entry of row 1 with the value v.
func (x *world) isStored(v string) bool {
	x.t.Helper()
	s, err := x.server.Client(x.t).Get(x.t.Context(), redisKey).Result()
	return err == nil && strings.HasSuffix(s, v)
}

// has fails unless row 1 is v.
func (x *world) has(v string) {
	x.t.Helper()
	if got, err := x.load(x.t.Context(), 1); got != v || err != nil {
		x.t.Fatalf("the row is %q, %v; want %q", got, err, v)
	}
}

// intents is how many rows the outbox has.
func (x *world) intents() (n int) {
	x.t.Helper()
	x.check(x.admin.Get(&n, "SELECT COUNT(*) FROM cacheaside_outbox"))
	return n
}

// relays has a relay work until f.
func (x *world) relays(what string, f func() bool) {
	x.t.Helper()
	r, err := NewRelay(x.relaying, x.options.Queue, &RelayOptions{Poll: 10 * time.Millisecond})
	x.check(err)
	ctx, stop := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	x.eventually(what, f)
	stop()
	<-done
}

func (x *world) eventually(what string, f func() bool) {
	x.t.Helper()
	testenv.Eventually(x.t, what, f)
}

// connections are those of a client, so that a test can end them on its side.
type connections struct {
	mu  sync.Mutex
	all []net.Conn
}

// open returns connections to a server by c.
func (c *connections) open(driver, dsn string) (*sqlx.DB, error) {
	if driver == "pgx" {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		config.DialFunc = c.dial
		return sqlx.NewDb(stdlib.OpenDB(*config), driver), nil
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.DialFunc = c.dial
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sqlx.NewDb(sql.OpenDB(connector), driver), nil
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		c.mu.Lock()
		c.all = append(c.all, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// close makes the client close its connections: requests that it has sent may still arrive.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		conn.Close()
	}
	c.all = nil
}

// is fails unless err is want; nil wants no error.
func is(t testing.TB, err, want error) {
	t.Helper()
	if want == nil && err != nil || !errors.Is(err, want) {
		t.Fatalf("%v; want %v", err, want)
	}
}

// hook is the function that point calls in tests.
var hook atomic.Pointer[func(string)]

func init() {
	point = func(name string) {
		if f := hook.Load(); f != nil {
			(*f)(name)
		}
	}
}

// at has f called at a place between statements, the first time.
func at(t testing.TB, name string, f func()) {
	t.Helper()
	var done atomic.Bool
	on := func(p string) {
		if p == name && done.CompareAndSwap(false, true) {
			f()
		}
	}
	hook.Store(&on)
	t.Cleanup(func() { hook.Store(nil) })
}
