//go:build accept

package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// writing is a way to change a row and invalidate the caches.
type writing struct {
	name string
	do   func(ctx context.Context) error
	took []float64 // ns per write in each run
}

// writes is a table and its writers.
type writes struct {
	*testing.T
	db    *sqlx.DB
	redis *testenv.Redis
	ways  []*writing
	n     int
}

func (x *writes) way(name string, do func(ctx context.Context) error) {
	x.ways = append(x.ways, &writing{name: name, do: do})
}

// statement returns the statement that changes the row.
func (x *writes) statement(ctx context.Context, tx *sqlx.Tx) error {
	x.n++
	_, err := tx.ExecContext(ctx, "UPDATE item SET v = ? WHERE id = 1", strconv.Itoa(x.n))
	return err
}

// transaction is a write without a cache.
func (x *writes) transaction(ctx context.Context) error {
	tx, err := x.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if err := x.statement(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// and returns a write that is a transaction followed by an invalidation.
func (x *writes) and(invalidate func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if err := x.transaction(ctx); err != nil {
			return err
		}
		return invalidate(ctx)
	}
}

// levels adds the guarantees of this library's Writer. Strict writes use a cache of their own,
// because that is a setting of the cache.
func (x *writes) levels() {
	writer := func(strict bool) (*consistency.Writer, *cacheaside.Loader[int64, string]) {
		cache := must(cacheaside.New(redisClient(x.T, x.redis),
			&cacheaside.Options{Prefix: fmt.Sprint("writes-", strict), StrictWrites: strict}))(x.T)
		x.Cleanup(func() { cache.Close() })
		rows := must(cacheaside.NewLoader(cache, "item", func(ctx context.Context, id int64) (v string, err error) {
			err = x.db.GetContext(ctx, &v, "SELECT v FROM item WHERE id = ?", id)
			return v, err
		}, nil))(x.T)
		outbox := must(sqloutbox.New(x.db, sqloutbox.MySQL, nil))(x.T)
		if err := outbox.CreateTable(x.Context()); err != nil {
			x.Fatal(err)
		}
		w := must(consistency.NewWriter(x.db, cache,
			&consistency.Options{Queue: outbox, AsyncDelay: 10 * time.Millisecond, NoRelay: strict}))(x.T)
		x.Cleanup(func() { w.Close() })
		return w, rows
	}
	w, rows := writer(false)
	strict, strictRows := writer(true)
	for _, level := range []consistency.Level{consistency.Async, consistency.Inline, consistency.Outbox} {
		w := w.At(level)
		x.way(own+": "+level.String(),
			func(ctx context.Context) error { return w.Update(ctx, x.statement, rows.Key(1)) })
	}
	held := strict.At(consistency.Strict)
	x.way(own+": Strict", func(ctx context.Context) error { return held.Update(ctx, x.statement, strictRows.Key(1)) })
	x.way(own+": WriteThrough", func(ctx context.Context) error {
		return consistency.WriteThrough(ctx, held, strictRows, 1,
			func(ctx context.Context, tx *sqlx.Tx) (string, error) {
				return "new", x.statement(ctx, tx)
			})
	})
}

// settle waits until the outbox is empty.
func (x *writes) settle() {
	x.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		var left int
		if err := x.db.GetContext(x.Context(), &left, "SELECT COUNT(*) FROM cacheaside_outbox"); err != nil {
			x.Fatal(err)
		}
		if left == 0 {
			return
		}
		if time.Since(began) > 20*time.Second {
			x.Fatalf("%d rows are left in the outbox after 20 s", left)
		}
	}
}

// TestWrites measures the cost of a write that invalidates the caches.
func TestWrites(t *testing.T) {
	x := &writes{T: t, db: sqlx.NewDb(must(sql.Open("mysql", durableMariaDB(t).DSN(t)))(t), "mysql"),
		redis: testenv.SharedRedis(t)}
	t.Cleanup(func() { x.db.Close() })
	for _, statement := range []string{"CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100))",
		"INSERT INTO item VALUES (1, 'old')"} {
		x.db.MustExec(statement)
	}
	const bare = "a bare transaction"
	x.way(bare, x.transaction)
	rdb := redisClient(t, x.redis)
	x.way("and a DEL by go-redis", x.and(func(ctx context.Context) error { return rdb.Del(ctx, "none").Err() }))
	for _, p := range entrants(t) {
		if !p.Redis {
			continue
		}
		c := open(t, p, Config{Redis: x.redis.Addr,
			Load: func(_ context.Context, key string) (*Row, error) { return rowOf(key), nil }, TTL: time.Hour})
		if peer, ok := c.(Invalidator); ok {
			x.way("and an invalidation by "+p.Name,
				x.and(func(ctx context.Context) error { return peer.Invalidate(ctx, "product:1") }))
		}
	}
	x.levels()

	each := size(100*time.Millisecond, 2*time.Millisecond)
	for run := range size(20, 1) + 1 { // the first run warms up
		for j := range x.ways {
			way := x.ways[(run+j)%len(x.ways)]
			began, n := time.Now(), 0
			for ; n == 0 || time.Since(began) < each; n++ {
				if err := way.do(t.Context()); err != nil {
					t.Fatalf("%s: %v", way.name, err)
				}
			}
			took := float64(time.Since(began).Nanoseconds()) / float64(n)
			if x.settle(); run > 0 {
				way.took = append(way.took, took)
			}
		}
	}
	var v string
	if err := x.db.Get(&v, "SELECT v FROM item WHERE id = 1"); err != nil || v != strconv.Itoa(x.n) {
		t.Errorf("the row does not have the last written value: %v", err)
	}
	table := &Table{Section: 14, Title: "A write, and what it changes in the caches",
		Text: "One UPDATE by primary key in MariaDB with innodb_flush_log_at_trx_commit=1 (sync_binlog=0), one " +
			"goroutine, no reads. A writer that only invalidates after the commit, like Inline, leaves old values " +
			"cached if the process dies in between. Async, Outbox, Strict and WriteThrough avoid that with a row in " +
			"the same transaction. Rows leave the outbox in the background. Before the next measurement, the test " +
			"waits until the outbox is empty, and does not count that time.",
		Head: []string{"", "us", "middle half", "of a bare transaction"}}
	for _, way := range x.ways {
		us := make([]float64, len(way.took))
		for i, ns := range way.took {
			us[i] = ns / 1000
		}
		table.Row(way.name, median(us), spread(us), median(ratios(way.took, x.ways[0].took)))
	}
	publish(t, table)
}
