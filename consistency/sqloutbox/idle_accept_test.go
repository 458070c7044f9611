//go:build accept

package sqloutbox

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgnotify"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestIdleRelays measures what 1 to 1,000 idle relays of one outbox ask of the database and of
// Redis, and how long an item waits that is put while they are idle. The relays are in this
// process, with 50 connections to the database. Those that listen have one more each.
func TestIdleRelays(t *testing.T) {
	relays := []int{1, 3}
	if testenv.Accepting {
		relays = []int{1, 5, 10, 100, 1000}
	}
	for _, f := range []idleFleet{
		{name: "mariadb", engine: testenv.MariaDB, relays: relays},
		{name: "postgres", engine: testenv.PostgreSQL, relays: relays},
		{name: "postgres, listening", engine: testenv.PostgreSQL, listen: true,
			relays: slices.DeleteFunc(slices.Clone(relays), func(n int) bool { return n > 100 })},
	} {
		t.Run(f.name, f.measure)
	}
}

type idleFleet struct {
	name   string
	engine testenv.Engine
	listen bool
	relays []int
}

func (f idleFleet) measure(t *testing.T) {
	var db *sqlx.DB
	var dsn string
	if f.engine == testenv.PostgreSQL {
		p := testenv.StartPostgres(t, "max_connections=300")
		db, dsn = sqlx.NewDb(p.DB(t), "pgx"), p.DSN(t)
	} else {
		db = testenv.DatabaseOf(t, f.engine).Open(t)
	}
	db.SetMaxOpenConns(50)
	db.SetMaxIdleConns(50)
	server := testenv.StartRedis(t)
	t.Log("| relays | statements (PostgreSQL: transactions)/s | commands of Redis/s | delay of an item p50 | p99 |")
	for _, n := range f.relays {
		w := &idleWorld{outboxTest: &outboxTest{TB: t, db: db}, server: server, dsn: dsn, fleet: f}
		w.run(t, n)
	}
}

type idleWorld struct {
	*outboxTest
	server *testenv.Redis
	dsn    string
	fleet  idleFleet

	mu   sync.Mutex
	ages []time.Duration // of items that are done
}

// A timedOutbox records the Age of items at their completion.
type timedOutbox struct {
	*Outbox
	world *idleWorld
}

func (t timedOutbox) Done(ctx context.Context, items ...consistency.Item) error {
	t.world.mu.Lock()
	for _, item := range items {
		t.world.ages = append(t.world.ages, item.Age)
	}
	t.world.mu.Unlock()
	return t.Outbox.Done(ctx, items...)
}

func (w *idleWorld) outbox() *Outbox {
	o := &Options{Namespace: testSpace}
	dialect := MySQL
	if w.fleet.engine == testenv.PostgreSQL {
		dialect = Postgres
	}
	if w.fleet.listen {
		var err error
		o.Listen, err = pgnotify.Listen(w.dsn)
		w.check(err)
	}
	box, err := New(w.db, dialect, o)
	w.check(err)
	return box
}

// asked returns what the database has executed, statements in MariaDB and transactions in
// PostgreSQL, and the commands of Redis.
func (w *idleWorld) asked() (database, commands float64) {
	w.Helper()
	if w.fleet.engine == testenv.PostgreSQL {
		w.check(w.db.QueryRowContext(w.Context(), "SELECT xact_commit + xact_rollback FROM pg_stat_database "+
			"WHERE datname = current_database()").Scan(&database))
	} else {
		var name string
		w.check(w.db.QueryRowContext(w.Context(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &database))
	}
	for _, n := range w.server.CommandCalls(w) {
		commands += float64(n)
	}
	return database, commands
}

func (w *idleWorld) run(t *testing.T, n int) {
	settle, idle, items := time.Second, 2*time.Second, 5
	if testenv.Accepting {
		settle, idle, items = 35*time.Second, 20*time.Second, 200
	}
	box := w.outbox()
	w.check(box.CreateTable(t.Context()))
	rdb := redis.NewClient(&redis.Options{Addr: w.server.Addr, ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, err := cacheaside.New(rdb, &cacheaside.Options{MemoryBytes: -1})
	w.check(err)
	defer cache.Close()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for range n {
		relay, err := consistency.NewRelay(cache, timedOutbox{w.outbox(), w},
			&consistency.RelayOptions{Logger: slog.New(slog.DiscardHandler)})
		w.check(err)
		running.Go(func() {
			if err := relay.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(settle)
	database, commands := w.asked()
	began := time.Now()
	time.Sleep(idle)
	database2, commands2 := w.asked()
	second := time.Since(began).Seconds()
	for i := range items {
		time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond))
		item := textItem(fmt.Sprint(i))
		item.ID = consistency.NewID()
		w.check(box.Put(t.Context(), item))
	}
	testenv.Eventually(t, "all items are done", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.ages) >= items
	})
	slices.Sort(w.ages)
	t.Logf("| %d | %.0f | %.0f | %v | %v |", n, (database2-database)/second,
		(commands2-commands)/second, w.ages[items/2].Round(time.Millisecond),
		w.ages[items*99/100].Round(time.Millisecond))
}
