package cacheaside

import (
	"testing"
)

// TestServerlessManyKeys reads and invalidates more keys at once than a command may have arguments
// where the service limits them.
func TestServerlessManyKeys(t *testing.T) {
	b := serverless(t)
	d := newShelf(10_000)
	o, lo := patient, &LoaderOptions{BatchSize: 10_000}
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
	d.write(9_999, "new")
	n := len(keys)
	if accepting {
		n = 100_000
	}
	all := make([]Key, n)
	for i := range all {
		all[i] = p.Key(i)
	}
	if err := p.cache.InvalidateKeys(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	rows, err := q.GetMany(t.Context(), keys)
	if err != nil || rows[0] != "new" || rows[9_999] != "new" {
		t.Errorf("%q, %q, %v", rows[0], rows[9_999], err)
	}
}
