package torture

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// row is a row of the table and the cached value. Its version identifies the last write.
type row struct {
	Key     int
	Version int64
	Fill    []byte `json:",omitempty"` // used by the wide mix
}

var tables atomic.Int64

// newTable creates a table of n rows with version 1, and returns its name.
func newTable(t *testing.T, db *sql.DB, n int) string {
	t.Helper()
	table := fmt.Sprint("item", tables.Add(1))
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE TABLE " + table + " (id INT PRIMARY KEY, v BIGINT NOT NULL) ENGINE=InnoDB")
	var values []string
	for id := range n {
		if values = append(values, fmt.Sprintf("(%d,1)", id)); len(values) == 1000 || id == n-1 {
			exec("INSERT INTO " + table + " VALUES " + strings.Join(values, ","))
			values = nil
		}
	}
	return table
}

// query reads a row from the database.
func (w *worker) query(ctx context.Context, key int) (row, error) {
	r := row{Key: key}
	err := w.db.QueryRowContext(ctx, "SELECT v FROM "+w.Table+" WHERE id = ?", key).Scan(&r.Version)
	if w.Wide {
		r.Fill = fill(key, r.Version)
	}
	return r, err
}

// groupsOf returns the groups of a version of a row. Four neighbouring rows share four groups. A
// row belongs to the last group and to one of the others, which changes with each write.
func groupsOf(key uint32, version int64) []uint32 {
	first := key / 4 * 4
	return []uint32{first + uint32(version%3), first + 3}
}

func groupName(group uint32) string { return fmt.Sprint("group ", group) }

func groupNames(key int, r row) (names []string) {
	for _, group := range groupsOf(uint32(key), r.Version) {
		names = append(names, groupName(group))
	}
	return names
}

// load is the load function. Most loads are fast. Some wait after they have read the row, so that
// an invalidation, or another load of the same process, can come in between. A few ignore their
// timeout.
func (w *worker) load(ctx context.Context, key int) (row, error) {
	op := history.Op{Kind: history.Load, Key: uint32(key), Start: history.Now()}
	r, err := w.source(ctx, key)
	switch p := rand.IntN(1000); {
	case p < 800:
	case p < 930:
		time.Sleep(rand.N(5 * time.Millisecond))
	case p < 960:
		sleep(ctx, 20*time.Millisecond+rand.N(60*time.Millisecond))
	case p < 995:
		time.Sleep(20*time.Millisecond + rand.N(60*time.Millisecond))
	default:
		time.Sleep(loadTimeout + rand.N(200*time.Millisecond))
	}
	if err != nil {
		op.Flags |= history.Failed
	}
	op.Version, op.End = r.Version, history.Now()
	w.record.Record(op)
	return r, err
}

// write commits a new version of a row and returns it.
func (w *worker) write(ctx context.Context, r *rand.Rand, key int) (version int64, err error) {
	if r.IntN(5) > 0 {
		result, err := w.db.ExecContext(ctx, "UPDATE "+w.Table+" SET v = LAST_INSERT_ID(v + 1) WHERE id = ?", key)
		if err != nil {
			return 0, err
		}
		return result.LastInsertId()
	}
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE "+w.Table+" SET v = v + 1 WHERE id = ?", key); err != nil {
		return 0, err
	}
	if err := tx.QueryRowContext(ctx, "SELECT v FROM "+w.Table+" WHERE id = ?", key).Scan(&version); err != nil {
		return 0, err
	}
	return version, tx.Commit()
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// pick returns a random duration below d.
func pick(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
