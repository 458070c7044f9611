package pglogical

import (
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A publication can have many tables. Only the columns of needed ones are kept. If a table becomes
// a needed one before the server describes it again, its rows are not lost.
func TestRelationsThatAreNotNeeded(t *testing.T) {
	users := event.Table{Schema: "public", Name: "users"}
	d := newDecoder(&catalog{}, nil, event.Need{})
	for _, m := range [][]byte{beginMessage, relationMessage, insertMessage} {
		if _, err := d.decode(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if r := d.relations[1]; r == nil || r.columns != nil || r.values != nil || r.key != nil || len(d.changes) > 0 {
		t.Errorf("%+v, %v", r, d.changes)
	}
	d.setCatalog(&catalog{of: map[uint32][]*table{1: {{Table: users}}}})
	for _, m := range [][]byte{insertMessage, updateMessage, deleteMessage} {
		if _, err := d.decode(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.changes) != 1 || d.changes[0].Kind != event.Replace || d.changes[0].Table != "users" {
		t.Errorf("%v", d.changes)
	}
}
