package mysqlbinlog

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/event"
)

const same = "../envelope/testdata/same"

// begun is when the first change in the files was committed; each that follows, a second after.
const begun = 1795353255

// format is a program that publishes changes.
type format struct {
	decode  envelope.Decoder
	sources string // of what its file is made after
	differ  map[string]difference
	moves   bool // a change of the primary key is a Delete and an Insert
}

// difference is how a column's text differs from the log's.
type difference struct {
	why  string
	text func(string) string
}

func unspaced(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}

// The README next to the files has the same differences and sources. In MariaDB's log, where JSON
// is a LONGTEXT, the text is as it was written. The files are made from MySQL, whose log has the
// text of a JSON column.
var formats = map[string]format{
	"canal": {decode: envelope.Canal,
		sources: "alibaba/canal: MQMessageUtils.java, LogEventConvert.java, JsonConversion.java, issue 157"},
	"maxwell": {decode: envelope.Maxwell,
		sources: "zendesk/maxwell: docs/docs/dataformat.md, src/test/resources/sql/json, RowMap.java, " +
			"BitColumnDef.java",
		differ: map[string]difference{
			"doc":  {"it is nested JSON in the message, not a text", unspaced},
			"body": {"nothing tells base64 from a text", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
		}},
	"debezium": {decode: envelope.Debezium,
		sources: "https://debezium.io/documentation/reference/stable/connectors/mysql.html; debezium/debezium: " +
			"MySqlSourceTypeInSchemaIT.java",
		differ: map[string]difference{"doc": {"the connector writes JSON without blanks", unspaced}},
		moves:  true},
}

// The log of a server that runs the statements yields the same changes as the messages of canal,
// Maxwell and Debezium, column by column, except for values that their formats cannot express.
func TestSameAsEnvelopes(t *testing.T) { each(t, sameAsEnvelopes) }

func sameAsEnvelopes(x *world) {
	t := x.T
	logged := loggedSame(x)
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			messages, err := os.ReadFile(filepath.Join(same, name+".jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			var told []event.Change
			for line := range bytes.Lines(messages) {
				changes, err := f.decode(bytes.TrimSpace(line))
				if err != nil {
					t.Fatal(err)
				}
				told = append(told, changes...)
			}
			want := f.asTold(logged)
			if len(told) != len(want) {
				t.Fatalf("%d changes, and %d in the log: %v, %v", len(told), len(want), told, want)
			}
			used := map[string]bool{}
			for i := range want {
				for _, d := range f.compare(&told[i], &want[i], used) {
					t.Errorf("change %d, a %v, %s (made after %s)", i, want[i].Kind, d, f.sources)
				}
			}
			for column, d := range f.differ {
				if !used[column] {
					t.Errorf("column %s does not differ, though %s", column, d.why)
				}
			}
		})
	}
}

// loggedSame runs the statements, and returns the row changes from the log.
func loggedSame(x *world) []event.Change {
	t := x.T
	statements, err := os.ReadFile(filepath.Join(same, "statements.sql"))
	x.Check(err)
	session, err := x.DB.Conn(t.Context())
	x.Check(err)
	defer func() { x.Check(session.Close()) }()
	t.Cleanup(func() { x.Do("DROP DATABASE IF EXISTS shop") })
	l := x.Listen(x.source(), x.Need([]string{"shop.item", "id"}))
	rows := 0
	for line := range strings.Lines(string(statements)) {
		if strings.HasPrefix(line, "INSERT") || strings.HasPrefix(line, "UPDATE") || strings.HasPrefix(line, "DELETE") {
			x.in(session, fmt.Sprintf("SET timestamp = %d", begun+rows))
			rows++
		}
		x.in(session, line)
	}
	x.in(session, "SET timestamp = DEFAULT")
	all := l.Changes(1 + rows) // and that the table was made
	if got, want := x.Text(all[0]), "alter shop.item"; got != want || len(all) != 1+rows {
		t.Fatalf("the log begins with %q, and has %d changes", got, len(all))
	}
	return all[1:]
}

// in runs a statement in a session.
func (w *world) in(session *sql.Conn, statement string) {
	w.Helper()
	if _, err := session.ExecContext(w.Context(), statement); err != nil {
		w.Fatalf("%.200s: %v", statement, err)
	}
}

// asTold converts the changes from the log to the form in which the format has them.
func (f *format) asTold(logged []event.Change) (all []event.Change) {
	for _, c := range logged {
		if !f.moves || c.Kind != event.Update || c.Before.Get("id").Equal(c.After.Get("id")) {
			all = append(all, c)
			continue
		}
		gone, come := c, c
		gone.Kind, gone.After = event.Delete, event.Row{}
		come.Kind, come.Before = event.Insert, event.Row{}
		all = append(all, gone, come)
	}
	return all
}

// compare says in what a change differs from that in the log. It notes which differences there are
// of those that are known.
func (f *format) compare(told, logged *event.Change, used map[string]bool) (all []string) {
	if told.Kind != logged.Kind || told.Schema != logged.Schema || told.Table != logged.Table {
		return []string{fmt.Sprintf("is told as %v, and logged as %v", told, logged)}
	}
	if !told.Time.Equal(logged.Time) {
		all = append(all, fmt.Sprintf("is told as of %v, and logged as of %v", told.Time, logged.Time))
	}
	for _, side := range []struct {
		name         string
		told, logged event.Row
	}{{"before", told.Before, logged.Before}, {"after", told.After, logged.After}} {
		if side.told.Exists() != side.logged.Exists() {
			all = append(all, fmt.Sprintf("%s: there is %v, and %v in the log", side.name, side.told, side.logged))
			continue
		}
		if a, b := sorted(side.told), sorted(side.logged); !slices.Equal(a, b) {
			all = append(all, fmt.Sprintf("%s: columns %q, and %q in the log", side.name, a, b))
		}
		for _, column := range side.logged.Columns().Names() {
			a, b := side.told.Get(column), side.logged.Get(column)
			want := b.Text()
			if d, ok := f.differ[column]; ok && !b.IsNull() {
				want = d.text(want)
				used[column] = used[column] || want != b.Text()
			}
			if a.Known() != b.Known() || a.IsNull() != b.IsNull() || a.Text() != want {
				all = append(all, fmt.Sprintf(
					"%s: column %s: known %v, NULL %v, %q, and in the log known %v, NULL %v, %q", side.name, column,
					a.Known(), a.IsNull(), a.Text(), b.Known(), b.IsNull(), want))
			}
		}
	}
	return all
}

func sorted(r event.Row) []string { return slices.Sorted(slices.Values(r.Columns().Names())) }
