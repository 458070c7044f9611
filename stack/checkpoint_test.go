package stack

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/jmoiron/sqlx"
)

// TestCheckpointName: services with different prefixes have different checkpoints in one table,
// even if the prefixes differ in nothing but case.
func TestCheckpointName(t *testing.T) {
	db := sqlx.NewDb(sqlite.Open(t), "sqlite")
	seen := map[string]string{}
	long := strings.Repeat("a", 64)
	for _, prefix := range []string{"shop", "Shop", "SHOP", "shop.eu-1", long, long + "a", long + "b", long + "B"} {
		name := checkpointName(prefix)
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have the checkpoint %s", prefix, other, name)
		}
		seen[name] = prefix
		if _, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Name: name}); err != nil {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}
