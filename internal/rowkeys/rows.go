package rowkeys

import (
	"database/sql"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A Row is a row of a table as the database driver returns it.
type Row struct {
	event.Row
	Key  []any  // the values of the primary key, as arguments of a statement
	Text string // the primary key as one text
}

// Read reads and closes the rows of a query. key are the columns of the primary key, which must be
// in the result. postgres selects the rules by which values have a text.
func Read(rows *sql.Rows, key []string, postgres bool) (read []Row, err error) {
	defer func() { _ = rows.Close() }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(types))
	for i, c := range types {
		names[i] = c.Name()
	}
	columns := event.NewColumns(names...)
	for rows.Next() {
		values, targets := make([]any, len(types)), make([]any, len(types))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		made := make([]event.Value, len(types))
		for i, v := range values {
			made[i] = valueOf(v, types[i].DatabaseTypeName(), postgres)
		}
		row := Row{}
		if row.Row, err = event.NewRow(columns, made); err != nil {
			return nil, err
		}
		for _, name := range key {
			for i := range names {
				if strings.EqualFold(names[i], name) {
					row.Key = append(row.Key, argument(values[i], types[i].DatabaseTypeName()))
					row.Text += made[i].Text() + "\x00"
					break
				}
			}
		}
		read = append(read, row)
	}
	return read, rows.Err()
}

// argument returns a value of a row as the argument of a statement. MySQL's driver returns texts as
// bytes, and would send them as a binary string, for which the server does not use an index.
func argument(v any, kind string) any {
	if b, ok := v.([]byte); ok && !isBinary(kind) {
		return string(b)
	}
	return v
}

func isBinary(kind string) bool {
	return strings.Contains(kind, "BLOB") || strings.Contains(kind, "BINARY") || kind == "BYTEA" || kind == "BIT"
}

// exactTypes are the types of PostgreSQL, MySQL and SQLite whose values have the same text in every
// program, if the driver returns them as text.
var exactTypes = map[string]bool{
	"INT2": true, "INT4": true, "INT8": true, "NUMERIC": true, "TEXT": true, "VARCHAR": true, "NAME": true,
	"UUID": true, "BPCHAR": true, "CHAR": true, "DECIMAL": true, "ENUM": true, "SET": true, "DATE": true,
	"DATETIME": true, "TINYTEXT": true, "MEDIUMTEXT": true, "LONGTEXT": true, "INET4": true, "INET6": true,
	"INT": true, "INTEGER": true, "BIGINT": true, "SMALLINT": true, "TINYINT": true, "MEDIUMINT": true, "YEAR": true,
	"UNSIGNED INT": true, "UNSIGNED BIGINT": true, "UNSIGNED SMALLINT": true, "UNSIGNED TINYINT": true,
	"UNSIGNED MEDIUMINT": true,
}

// valueOf converts a value of the driver, by the rules of the sources of package canal. A text that
// can differ from the one that the program knows is not exact, so no key is made of it.
func valueOf(v any, kind string, postgres bool) event.Value {
	kind, _, _ = strings.Cut(strings.ToUpper(kind), "(")
	switch v := v.(type) {
	case bool:
		if postgres && v {
			return event.TextValue("true")
		} else if postgres {
			return event.TextValue("false")
		}
	case time.Time:
		if kind == "DATE" && !postgres {
			return event.TextValue(v.Format(time.DateOnly))
		}
		return event.InexactText(v.Format(time.RFC3339Nano))
	case string:
		return textOf(v, kind, postgres)
	case []byte:
		if !isBinary(kind) {
			return textOf(string(v), kind, postgres)
		}
		if kind == "BIT" {
			return event.InexactText(string(v))
		}
	}
	made, err := event.ValueOf(v)
	if err != nil {
		return event.Value{}
	}
	return made
}

// textOf converts a text of the driver.
func textOf(text, kind string, postgres bool) event.Value {
	number := strings.HasSuffix(kind, "INT") || kind == "INTEGER"
	switch {
	case !exactTypes[kind]:
		return event.InexactText(text)
	case number && len(text) > 1 && text[0] == '0': // ZEROFILL
		return event.Inexact(text)
	case postgres && kind == "BPCHAR" && strings.HasSuffix(text, " "): // some programs remove the padding
		return event.InexactText(text)
	case postgres && kind == "DATE":
		return event.InexactText(text)
	}
	return event.TextValue(text)
}

// Changes returns the changes of rows that were read before and after a statement. deletes means
// that rows without an after were deleted. Otherwise their primary key has changed, and complete is
// false.
func Changes(before, after []Row, deletes bool) (changes []event.Change, complete bool) {
	found := make(map[string]event.Row, len(after))
	for _, r := range after {
		found[r.Text] = r.Row
	}
	for _, r := range before {
		switch row, ok := found[r.Text]; {
		case ok:
			changes = append(changes, event.Change{Kind: event.Update, Before: r.Row, After: row})
		case deletes:
			changes = append(changes, event.Change{Kind: event.Delete, Before: r.Row})
		default:
			return nil, false
		}
	}
	return changes, true
}

// Inserted returns the changes of rows that a statement has inserted. If it may have updated rows
// instead (upsert), before are those that were found before it. A row that was not found then may
// have been inserted by another transaction before the statement: its old values are not known,
// except its primary key.
func Inserted(before, after []Row, key []string, upsert bool) (changes []event.Change) {
	found := make(map[string]event.Row, len(before))
	for _, r := range before {
		found[r.Text] = r.Row
	}
	for _, r := range after {
		if row, ok := found[r.Text]; ok {
			changes = append(changes, event.Change{Kind: event.Update, Before: row, After: r.Row})
			continue
		}
		changes = append(changes, event.Change{Kind: event.Insert, After: r.Row})
		if upsert {
			changes = append(changes, event.Change{Kind: event.Update, Before: onlyKey(r.Row, key), After: r.Row})
		}
	}
	return changes
}

// onlyKey returns a row of which only the primary key is known.
func onlyKey(r event.Row, key []string) event.Row {
	values := make([]event.Value, 0, len(r.Columns().Names()))
	for name, v := range r.All() {
		known := false
		for _, k := range key {
			known = known || strings.EqualFold(k, name)
		}
		if !known {
			v = event.Value{}
		}
		values = append(values, v)
	}
	made, _ := event.NewRow(r.Columns(), values)
	return made
}
