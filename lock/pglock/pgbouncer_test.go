package pglock_test

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/locktest"
)

// TestPgBouncer: a pooler may run each statement in another session, and may not know prepared
// statements. With pgx's query modes that need none, everything works.
func TestPgBouncer(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		pooled := testenv.StartPgBouncer(t, w.Server.(*testenv.Postgres))
		for _, mode := range []string{"exec", "simple_protocol"} {
			t.Run(mode, func(t *testing.T) {
				locktest.Run(t, backend(w, pooled+"&default_query_exec_mode="+mode))
			})
		}
	})
}

// TestPgBouncerPrepared: where the pooler does not know prepared statements and the driver uses
// them, an error says what to set. No lock is held by two.
func TestPgBouncerPrepared(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		pooled := testenv.StartPgBouncer(t, w.Server.(*testenv.Postgres))
		var errs []string
		for range 10 {
			lease, err := w.Locker(t, w.Open(t, pooled), rowtest.Long).Acquire(within(t, patience), "a", nil)
			if err == nil {
				check(t, lease.Release())
				continue
			}
			errs = append(errs, err.Error())
		}
		if len(errs) == 0 {
			t.Log("this PgBouncer supports prepared statements")
		}
		for _, text := range errs {
			if !strings.Contains(text, "default_query_exec_mode=exec") {
				t.Error(text)
			}
		}
	})
}
