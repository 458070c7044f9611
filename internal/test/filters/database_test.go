// Package filters_test tests loaders with filters, among them filters whose sources are wrong.
package filters_test

import (
	"context"
	"strconv"
	"sync"
)

const stored = 5000

// numbers returns the keys from one to before another.
func numbers(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, strconv.Itoa(i))
	}
	return keys
}

// database is a table of rows, some of them not there.
type database struct {
	mu   sync.Mutex
	gone map[int64]bool
}

func (d *database) load(_ context.Context, ids []int64) (map[int64]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := make(map[int64]string)
	for _, id := range ids {
		if id >= 0 && id < stored && !d.gone[id] {
			found[id] = "row"
		}
	}
	return found, nil
}
