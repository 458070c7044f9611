package sqloutbox_test

import (
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// throughPgBouncer returns n outboxes of a new database, behind a PgBouncer that may execute each
// transaction in another session, and does not know prepared statements.
func throughPgBouncer(
	t testing.TB, mode string, namespace func(n int) string,
) func(t testing.TB, n int) []consistency.Queue {
	server := testenv.SharedPostgres(t)
	return func(t testing.TB, n int) []consistency.Queue {
		db, err := sqlx.Open("pgx", testenv.StartPgBouncer(t, server)+"&default_query_exec_mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		var all []consistency.Queue
		for i := range n {
			o, err := sqloutbox.New(db, sqloutbox.Postgres, &sqloutbox.Options{Namespace: namespace(i)})
			if err == nil {
				err = o.CreateTable(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, o)
		}
		return all
	}
}

// TestOutboxThroughPgBouncer: behind PgBouncer in transaction mode, an outbox keeps the contract of
// a Queue.
func TestOutboxThroughPgBouncer(t *testing.T) {
	modes := []string{"exec"}
	if testenv.Accepting {
		modes = []string{"exec", "simple_protocol"}
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			queuetest.Run(t, queuetest.Backend{
				New:   throughPgBouncer(t, mode, func(int) string { return "suite" }),
				Apart: throughPgBouncer(t, mode, func(n int) string { return fmt.Sprint("suite", n) }),
			})
		})
	}
}
