package canal

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A Consumer continues while the table of its checkpoint is missing. The alert has the statement
// that creates the table, after which the Consumer saves its position.
func TestCheckpointTableIsDropped(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		checkpoint, err := NewSQLCheckpoint(db, nil)
		check(err)
		check(checkpoint.CreateTable(t.Context()))
		_, rdb := testenv.Mini(t)
		cache, err := cacheaside.New(rdb, nil)
		check(err)
		defer cache.Close()
		load := func(context.Context, int64) (string, error) { return "", nil }
		users, err := cacheaside.NewLoader(cache, "user", load, nil)
		check(err)
		source, alerts := &told{begins: "0", in: make(chan any, 100)}, make(chan Alert, 100)
		bindings := []Binding{Bind(users, "shop", "users", IntColumn[int64]("id"))}
		c, err := NewConsumer(cache, source, checkpoint, bindings,
			&Options{SaveEvery: time.Millisecond, AlertAfter: time.Millisecond, OnAlert: func(a Alert) { alerts <- a }})
		check(err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		defer func() {
			stop()
			check(<-ended)
		}()
		tell := func(p event.Position) {
			source.in <- event.Batch{Changes: []event.Change{insert(row(1, nil))}, Position: p, Time: time.Now()}
			testenv.Eventually(t, "position "+string(p), func() bool { return c.Stats().Position == p })
		}
		saved := func(p event.Position) {
			testenv.Eventually(t, "saved "+string(p), func() bool { return c.Stats().Saved == p })
		}
		tell("1")
		saved("1")
		_, err = db.Exec("DROP TABLE " + checkpoint.table.SQL())
		check(err)
		tell("2")
		testenv.Eventually(t, "Health fails", func() bool {
			err := c.Health(time.Minute)
			return err != nil && strings.Contains(err.Error(), checkpoint.Schema())
		})
		for a := range alerts {
			if a.Kind == "checkpoint" && strings.Contains(a.Err.Error(), checkpoint.Schema()) {
				break
			}
		}
		tell("3")
		_, err = db.Exec(checkpoint.Schema())
		check(err)
		saved("3")
		testenv.Eventually(t, "Health returns nil", func() bool { return c.Health(time.Minute) == nil })
		tell("4")
		saved("4")
	})
}
