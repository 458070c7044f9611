package promises

import (
	"testing"

	"github.com/cacheaside/cacheaside"
)

// TestServerlessManyKeys reads and invalidates more keys in one call than the service allows as
// arguments of a command.
func TestServerlessManyKeys(t *testing.T) {
	b := serverless(t)
	d := newShelf(5_000)
	o, lo := patient, &cacheaside.LoaderOptions{BatchSize: 5_000}
	p, q := startMany(t, b.client(t), d, o, lo), startMany(t, b.client(t), d, o, lo)
	hear(t, p.Loader)
	hear(t, q.Loader)
	keys := make([]int, len(d.rows))
	for i := range keys {
		keys[i] = i
	}
	read := func(l many) {
		t.Helper()
		rows, err := l.GetMany(t.Context(), keys)
		if err != nil || len(rows) != len(keys) {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
	}
	read(p)
	read(q)
	if loads, _ := d.loaded(); len(loads) != len(keys) || loads[0] != 1 {
		t.Errorf("%d keys, the first %d times", len(loads), loads[0])
	}
	d.write(0, "new")
	d.write(4_999, "new")
	n := len(keys)
	if accepting {
		n = 100_000
	}
	all := make([]cacheaside.Key, n)
	for i := range all {
		all[i] = p.Key(i)
	}
	if err := p.cache.InvalidateKeys(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	fresh := func(l many) bool {
		t.Helper()
		rows, err := l.GetMany(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		return rows[0] == "new" && rows[4_999] == "new"
	}
	if !fresh(p) {
		t.Error("the invalidating process reads old rows")
	}
	waitFor(t, func() bool { return fresh(q) }) // it receives messages
}
