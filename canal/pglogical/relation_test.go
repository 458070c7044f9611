package pglogical

import (
	"slices"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A publication can have many tables. Only needed ones have converters of their columns. If a table
// becomes a needed one, and the server does not describe it again, its rows are read.
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
	var kinds []event.Kind
	for _, c := range d.changes {
		if c.Schema == "public" && c.Table == "users" {
			kinds = append(kinds, c.Kind)
		}
	}
	if want := []event.Kind{event.Insert, event.Update, event.Delete}; !slices.Equal(kinds, want) {
		t.Errorf("%v of %v, want %v", kinds, d.changes, want)
	}
}

// The descriptions of very many relations are not kept. The rows of one that becomes a needed one
// count as replacements of its table.
func TestManyRelationsThatAreNotNeeded(t *testing.T) {
	d := newDecoder(&catalog{}, nil, event.Need{})
	for id := range uint32(maxDescribed) {
		d.relations[2+id] = &relation{}
	}
	for _, m := range [][]byte{beginMessage, relationMessage} {
		if _, err := d.decode(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	d.setCatalog(&catalog{of: map[uint32][]*table{1: {{Table: event.Table{Schema: "public", Name: "users"}}}}})
	if _, err := d.decode(t.Context(), insertMessage); err != nil {
		t.Fatal(err)
	}
	if len(d.changes) != 1 || d.changes[0].Kind != event.Replace || d.changes[0].Table != "users" {
		t.Errorf("%v", d.changes)
	}
}
