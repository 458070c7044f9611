package pglogical

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/event"
)

// identities are the columns of each table's REPLICA IDENTITY.
var identities = map[event.Table][]string{
	{Schema: "sales", Name: "item"}:  {"id"},
	{Schema: "sales", Name: "users"}: {"email"},
	{Schema: "sales", Name: "docs"}:  {"id"},
	{Schema: "sales", Name: "whole"}: nil,
	{Schema: "sales", Name: "log"}:   {},
}

// differs are the columns whose texts are not the same. They cannot be keys.
var differs = []string{"cost", "took", "tags", "flags"}

// The server's changes equal those of Debezium's messages, column by column: the same columns are
// known, and the same ones can be keys, with the same texts. testdata/postgres/README.md of package
// envelope lists the differences.
func TestSameAsDebezium(t *testing.T) {
	x := shared(t)
	sent := changesOfStatements(x)
	messages, err := os.ReadFile(filepath.Join("../envelope/testdata/postgres", "debezium.jsonl"))
	x.Check(err)
	decode := envelope.DebeziumPostgres(identities)
	var published []event.Change
	for line := range bytes.Lines(messages) {
		changes, err := decode(bytes.TrimSpace(line))
		x.Check(err)
		published = append(published, changes...)
	}
	if len(published) != len(sent) {
		t.Fatalf("%d changes were published, and %d sent: %v, %v", len(published), len(sent), published, sent)
	}
	for i, p := range published {
		s := sent[i]
		if p.Kind != s.Kind || p.Schema != s.Schema || p.Table != s.Table {
			t.Errorf("change %d was published as %v, and sent as %v", i, p, s)
			continue
		}
		sameRow(t, i, "before", p.Before, s.Before)
		sameRow(t, i, "after", p.After.Over(p.Before), s.After.Over(s.Before))
	}
}

func sameRow(t *testing.T, i int, side string, published, sent event.Row) {
	if published.Exists() != sent.Exists() {
		t.Errorf("change %d, %s: %v was published, and %v sent", i, side, published, sent)
		return
	}
	for name, s := range sent.All() {
		p := published.Get(name)
		switch {
		case p.Exact() != s.Exact():
			t.Errorf("change %d, %s: column %s: published %v, exact %v; sent %v, exact %v", i, side, name, p, p.Exact(),
				s, s.Exact())
		case !s.IsNull() && slices.Contains(differs, name):
		case p.Known() != s.Known() || p.IsNull() != s.IsNull() || p.Text() != s.Text():
			t.Errorf("change %d, %s: column %s: published %v, %q; sent %v, %q", i, side, name, p, p.Text(), s, s.Text())
		}
	}
}

// changesOfStatements executes the statements, and returns what the server sent of them. A change
// of an identity is a Delete and an Insert, as Debezium publishes it.
func changesOfStatements(x *world) (all []event.Change) {
	statements, err := os.ReadFile(filepath.Join("../envelope/testdata/postgres", "statements.sql"))
	x.Check(err)
	ddl, rows, _ := strings.Cut(string(statements), "INSERT")
	x.Do(strings.Split(strings.TrimSpace(ddl), "\n")...)
	l := x.Listen(x.source(), x.Need([]string{"sales.item", "id"}, []string{"sales.users", "email"},
		[]string{"sales.docs", "id"}, []string{"sales.whole", "doc"}, []string{"sales.log"}))
	x.Do(strings.Split(strings.TrimSpace("INSERT"+rows), "\n")...)
	l.Until("the table is emptied", func() bool { return counts(l, "truncate sales.item") == 1 })
	for _, c := range l.All() {
		switch key := identities[event.Table{Schema: c.Schema, Name: c.Table}]; {
		case c.Kind == event.Replace: // the catalog shows sooner or later that it was emptied
		case c.Kind == event.Update && len(key) == 1 && !c.Before.Get(key[0]).Equal(c.After.Get(key[0])):
			gone, come := c, c
			gone.Kind, gone.After = event.Delete, event.Row{}
			come.Kind, come.Before = event.Insert, event.Row{}
			all = append(all, gone, come)
		default:
			all = append(all, c)
		}
	}
	return all
}
