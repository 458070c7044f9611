package pglogical

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Before a Source has asked, it knows of no transaction that it is visible.
func TestNothingIsVisibleAtFirst(t *testing.T) {
	for _, xid := range []uint64{1, 3e9, 1<<32 + 5} {
		if (snapshot{}).visible(xid) {
			t.Errorf("%d is visible", xid)
		}
	}
}

// The log has the lower 32 bits of an ID. They become the ID next to that of a recent snapshot.
func TestFullID(t *testing.T) {
	for _, c := range []struct {
		max  uint64
		xid  uint32
		want uint64
	}{
		{3e9 + 1, 3e9, 3e9}, {3e9, 3e9 + 7, 3e9 + 7}, {1<<32 + 5, 0xfffffff0, 0xfffffff0}, {1<<32 + 5, 4, 1<<32 + 4}, {1<<32 - 5, 3, 1<<32 + 3}, {5<<32 + 3e9, 2e9, 5<<32 + 2e9},
	} {
		if got := (snapshot{max: c.max}).full(c.xid); got != c.want {
			t.Errorf("%d at %d: %d, want %d", c.xid, c.max, got, c.want)
		}
	}
}

// A reader compares the transactions of the log to a snapshot of the last second.
func TestPartsHaveFullIDs(t *testing.T) {
	parts := make(chan part, 1)
	r := &reader{out: parts, now: snapshot{max: 7<<32 + 3e9}, due: time.Now().Add(time.Hour)}
	r.xid, r.changes = 3e9-1, make([]event.Change, 1)
	if err := r.flush(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if p := <-parts; p.xid != 7<<32+3e9-1 {
		t.Error(p.xid)
	}
}
