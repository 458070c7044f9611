package sqloutbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestNotifyCost measures transactions that put an item: alone, when the outbox notifies four
// listeners after them, and, for contrast, with a NOTIFY in each.
func TestNotifyCost(t *testing.T) {
	n, server := 200, testenv.SharedPostgres(t)
	if testenv.Accepting {
		n, server = 60_000, testenv.StartPostgres(t, "fsync=on")
	}
	const perSecond, writers = 2000.0, 32
	o := newOutboxTest(&outboxTest{TB: t, db: sqlx.NewDb(server.DB(t), "pgx")})
	o.exec(o.db, "CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100))")
	c, err := pgx.ParseConfig(server.DSN(t))
	o.check(err)
	db := sqlx.NewDb(stdlib.OpenDB(*c), "pgx")
	t.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(writers)
	listening := o.listening(db, server.DSN(t))
	for range 4 {
		o.hears(listening)
	}
	type kind struct {
		name  string
		after func(ctx context.Context, tx *sqlx.Tx) (committed func(), err error)
	}
	kinds := []kind{
		{"without notifications", func(context.Context, *sqlx.Tx) (func(), error) { return func() {}, nil }},
		{"notified after the commit", func(context.Context, *sqlx.Tx) (func(), error) {
			return func() { listening.Committed(consistency.Item{}) }, nil
		}},
		{"NOTIFY in the transaction", func(ctx context.Context, tx *sqlx.Tx) (func(), error) {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("NOTIFY %s, 'items'", listening.channel()))
			return func() {}, err
		}},
	}
	write := func(k kind, id int) error {
		ctx := t.Context()
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "INSERT INTO item VALUES ($1, 'new')", id); err != nil {
			return err
		}
		item := textItem("a")
		item.ID, item.New = consistency.NewID(), true
		if err := listening.PutIn(ctx, tx, item); err != nil {
			return err
		}
		committed, err := k.after(ctx, tx)
		if err == nil {
			err = tx.Commit()
		}
		if err == nil {
			committed()
		}
		return err
	}
	measure := func(k kind, n int) (figures string, p50, p99 time.Duration) {
		o.exec(o.db, "TRUNCATE item, cacheaside_outbox")
		took := make([]time.Duration, n)
		began := time.Now()
		var work sync.WaitGroup
		for w := range writers {
			work.Go(func() {
				for id := w; id < n; id += writers {
					time.Sleep(time.Until(began.Add(time.Duration(float64(id) / perSecond * float64(time.Second)))))
					at := time.Now()
					if err := write(k, id); err != nil {
						t.Error(err)
						return
					}
					took[id] = time.Since(at)
				}
			})
		}
		work.Wait()
		total := time.Since(began)
		slices.Sort(took)
		p50, p99 = took[n/2].Round(10*time.Microsecond), took[n*99/100].Round(10*time.Microsecond)
		return fmt.Sprintf("%s: %.0f/s, p50 %v, p99 %v", k.name, float64(n)/total.Seconds(), p50, p99), p50, p99
	}
	measure(kinds[0], n/4) // opens the connections
	var figures []string
	var medians, worst []time.Duration
	for _, k := range kinds {
		text, p50, p99 := measure(k, n)
		figures, medians, worst = append(figures, text), append(medians, p50), append(worst, p99)
	}
	t.Logf("%d writes, %.0f/s wanted, by %d writers: %s", n, perSecond, writers, strings.Join(figures, "; "))
	if testenv.Accepting && (medians[1] > 3*medians[0]/2 || worst[1] > 2*worst[0]) {
		t.Error("writes wait for notifications")
	}
}
