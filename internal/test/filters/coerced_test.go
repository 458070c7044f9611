package filters_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestKeysThatADatabaseTakesForOthers: MariaDB and MySQL find rows under texts that are no keys of
// the table. An audit that finds one of these drops the filter. Until it is rebuilt, the rows are
// found under all these texts. The rebuilt filter refuses the texts again.
func TestKeysThatADatabaseTakesForOthers(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		db := e.Shared(t).DB(t)
		exec := func(statement string) {
			_, err := db.ExecContext(t.Context(), statement)
			must(t, err)
		}
		exec("CREATE TABLE numbered (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL)")
		exec("INSERT INTO numbered VALUES (1, 'one'), (2, 'two'), (20, 'twenty'), (300, 'three hundred')")
		exec("CREATE TABLE named (id VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, name VARCHAR(20) NOT NULL)")
		exec("INSERT INTO named VALUES ('Ada', 'one'), ('grace', 'two'), ('Zoë', 'three')")
		for table, c := range map[string]struct {
			source bloom.Source
			others []string
		}{
			"numbered": {bloom.Table[int64](db, "numbered", "id"), []string{"2x", "02", "+2", " 2", "2.0", "2e1", "3e2", "1 OR 1=1", "\t20"}},
			"named":    {bloom.Table[string](db, "named", "id"), []string{"ADA", "ada", "GRACE", "Grace", "zoe", "grace ", "Zoë  "}},
		} {
			t.Run(table, func(t *testing.T) {
				t.Parallel()
				f, err := bloom.NewLocal(1000, 0.0001)
				must(t, err)
				r := newRows(t, nil, cacheaside.Options{MemoryBytes: -1},
					cacheaside.LoaderOptions{Filter: f, AuditEvery: cacheaside.MinTTL})
				r.load = func(ctx context.Context, key string) (name string, err error) {
					return name, db.QueryRowContext(ctx, "SELECT name FROM "+table+" WHERE id = ?", key).Scan(&name)
				}
				_, err = f.Rebuild(t.Context(), c.source, nil)
				must(t, err)
				found := func(key string) bool {
					name, err := r.Get(t.Context(), key)
					if err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
						t.Fatal(err)
					}
					return name != ""
				}
				for _, key := range c.others {
					testenv.Eventually(t, "that the first key ends the filter", func() bool {
						found(c.others[0])
						return f.Stats().Hidden == 1
					})
					if !found(key) {
						t.Errorf("the database does not find a row for %q", key)
					}
				}
				_, err = f.Rebuild(t.Context(), c.source, nil)
				must(t, err)
				if state, _ := f.State(t.Context()); !state.Built || hidden(t, f, c.others) != len(c.others) {
					t.Errorf("the rebuilt filter: %+v", state)
				}
			})
		}
	})
}
