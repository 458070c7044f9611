package pglock_test

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/locktest"
)

// TestPgBouncer: a pooler may run each statement in a different session and may not support
// prepared statements. Everything works in those query modes of pgx that need none.
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

// TestPgBouncerPrepared: if the driver uses prepared statements and the pooler does not support
// them, an error names the required setting. The lock never has two holders.
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
