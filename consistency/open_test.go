package consistency

import (
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestFunctionEndsTransaction: a function that executes COMMIT, ROLLBACK or the like as a statement
// gets an ErrUnknown, at each level, and the caches are right.
func TestFunctionEndsTransaction(t *testing.T) {
	for name, test := range map[string]struct {
		engine testenv.Engine
		ends   []string
	}{
		"sqlite":   {"", []string{"COMMIT", "ROLLBACK"}},
		"mariadb":  {testenv.MariaDB, []string{"COMMIT", "ROLLBACK", "CREATE TABLE made (id INT)"}},
		"mysql":    {testenv.MySQL, []string{"COMMIT", "ROLLBACK", "CREATE TABLE made (id INT)"}},
		"postgres": {testenv.PostgreSQL, []string{"COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'p'"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, setup{engine: test.engine})
			for _, level := range levels {
				for _, end := range test.ends {
					x.reset()
					err := x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
						if err := set(1, "new")(ctx, tx); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, end)
						return err // of PREPARE TRANSACTION, if max_prepared_transactions is 0
					}, x.rows.Key(1))
					if end[0] == 'P' {
						if err == nil {
							t.Errorf("%v, %s: no error", level, end)
						}
						_, _ = x.db.Exec("ROLLBACK PREPARED 'p'")
					} else if !errors.Is(err, ErrUnknown) {
						t.Errorf("%v, %s: %v", level, end, err)
					}
					if end[0] == 'C' && end != "COMMIT" {
						x.exec("DROP TABLE made")
					}
					want := "new"
					if end[0] != 'C' {
						want = "old"
					}
					x.has(want)
					x.reads(want)
				}
			}
		})
	}
}
