package mysqllock_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { rowtest.Children(kind) }

func TestHistory(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		m := table(t, e)
		db := m.DB(t)
		// Spares later tests the wait for the disk.
		defer func() { db.ExecContext(within(t, patience), "SET GLOBAL innodb_flush_log_at_trx_commit = 0") }()
		rowtest.History(t, world(t, m))
	})
}

func TestHistoryOfKinds(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		rowtest.HistoryOfKinds(t, world(t, table(t, e)))
	})
}
