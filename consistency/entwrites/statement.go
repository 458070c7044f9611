package entwrites

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// run executes the statement by exec, and puts the keys of its rows into the outbox.
func (s *statement) run(exec func(text string, args []any) error, result func() sql.Result) error {
	switch {
	case len(s.key) == 0 || s.upsert || s.verb == "":
		return s.runWhole(exec)
	case s.verb == "INSERT":
		if err := exec(s.text, s.args); err != nil {
			return err
		}
		return s.inserted(s.generated(result()))
	}
	before, err := s.rowsBefore()
	if err != nil {
		return err
	}
	if len(before) > rowkeys.MaxRows {
		return s.runWhole(exec)
	}
	if err := exec(s.restricted(before)); err != nil {
		return err
	}
	var after []rowkeys.Row
	if s.verb == "UPDATE" {
		if after, err = s.rowsByKey(before); err != nil {
			return err
		}
	}
	return s.touch(rowkeys.Changes(before, after, s.verb == "DELETE"))
}

// runWhole executes a statement whose rows are not known.
func (s *statement) runWhole(exec func(text string, args []any) error) error {
	keys, err := s.whole(s.verb != "DELETE")
	if err != nil {
		return err
	}
	if err := exec(s.text, s.args); err != nil {
		return err
	}
	return s.tx.touch(s.ctx, keys)
}

// inserted puts the keys of inserted rows into the outbox. generated are their primary keys, if the
// database has made them.
func (s *statement) inserted(generated []rowkeys.Row) error {
	keys := s.given()
	if len(keys) == 0 {
		keys = generated
	}
	if len(keys) == 0 || len(keys) > rowkeys.MaxRows {
		return s.touch(nil, false)
	}
	after, err := s.rowsByKey(keys)
	if err != nil {
		return err
	}
	return s.touch(rowkeys.Inserted(nil, after, s.key, false), len(after) == len(keys))
}

// given returns the primary keys in the arguments of an INSERT, or none.
func (s *statement) given() (rows []rowkeys.Row) {
	n := len(s.columns)
	if !s.values || n == 0 || len(s.args)%n > 0 {
		return nil
	}
	for from := 0; from < len(s.args); from += n {
		row := rowkeys.Row{}
		for _, k := range s.key {
			i := slices.Index(s.columns, k)
			if i < 0 {
				return nil
			}
			row.Key = append(row.Key, s.args[from+i])
		}
		rows = append(rows, row)
	}
	return rows
}

// generated returns the primary keys that MySQL has made for an INSERT, or none. The server returns
// the first one, and the others follow if it increments by one.
func (s *statement) generated(result sql.Result) (rows []rowkeys.Row) {
	if len(s.key) != 1 || result == nil {
		return nil
	}
	first, err := result.LastInsertId()
	n, err2 := result.RowsAffected()
	if err != nil || err2 != nil || first == 0 || n > rowkeys.MaxRows {
		return nil
	}
	if n > 1 && !s.stepsByOne() {
		return nil
	}
	for i := range n {
		rows = append(rows, rowkeys.Row{Key: []any{first + i}})
	}
	return rows
}

// stepsByOne reports whether MySQL increments generated keys by one.
func (s *statement) stepsByOne() bool {
	if s.tx.driver.Dialect() != dialect.MySQL {
		return false
	}
	var rows entsql.Rows
	var step int
	if s.tx.Tx.Query(s.ctx, "SELECT @@SESSION.auto_increment_increment", []any{}, &rows) != nil {
		return false
	}
	defer func() { _ = rows.Close() }()
	return rows.Next() && rows.Scan(&step) == nil && step == 1
}

func (s *statement) postgres() bool { return s.tx.driver.Dialect() == dialect.Postgres }

// quoted returns a name, or schema.name, in quotation marks.
func (s *statement) quoted(name string) string {
	mark := "`"
	if s.postgres() {
		mark = `"`
	}
	return mark + strings.ReplaceAll(name, ".", mark+"."+mark) + mark
}

// placeholder returns the placeholder of the nth argument.
func (s *statement) placeholder(n int) string {
	if s.postgres() {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// byKey returns the condition that the primary key is that of one of the rows. args are those of
// the statement before the condition; it returns them with those of the condition.
func (s *statement) byKey(rows []rowkeys.Row, args []any) (string, []any) {
	args = slices.Clone(args)
	if len(rows) == 0 {
		return "1 = 0", args
	}
	var b strings.Builder
	for n, r := range rows {
		separator := " OR "
		if n == 0 {
			separator = "("
		}
		for i, k := range s.key {
			args = append(args, r.Key[i])
			switch {
			case len(s.key) > 1:
				fmt.Fprintf(&b, "%s%s = %s", separator, s.quoted(k), s.placeholder(len(args)))
				separator = " AND "
			case n == 0:
				fmt.Fprintf(&b, "%s IN (%s", s.quoted(k), s.placeholder(len(args)))
			default:
				b.WriteString(", " + s.placeholder(len(args)))
			}
		}
	}
	return b.String() + ")", args
}

// restricted returns the statement with the additional condition that it changes only these rows.
func (s *statement) restricted(rows []rowkeys.Row) (string, []any) {
	condition, args := s.byKey(rows, s.args)
	if s.where != "" {
		condition = "(" + s.where + ") AND " + condition
	}
	return s.head + " WHERE " + condition, args
}

// rowsBefore reads and locks the rows that an UPDATE or DELETE changes, at most one more than
// MaxRows.
func (s *statement) rowsBefore() ([]rowkeys.Row, error) {
	where, args := s.condition(s.postgres())
	if where == "" {
		where = "1 = 1"
	}
	tail := " LIMIT " + strconv.Itoa(rowkeys.MaxRows+1)
	if s.tx.driver.Dialect() != dialect.SQLite {
		tail += " FOR UPDATE"
	}
	return s.read(where+tail, args)
}

// rowsByKey reads the rows with the primary keys of others.
func (s *statement) rowsByKey(others []rowkeys.Row) ([]rowkeys.Row, error) {
	if len(others) == 0 {
		return nil, nil
	}
	where, args := s.byKey(others, nil)
	return s.read(where, args)
}

// read reads rows in the transaction.
func (s *statement) read(where string, args []any) ([]rowkeys.Row, error) {
	columns := "*"
	if len(s.bound.Columns) > 0 {
		var names []string
		for _, c := range slices.Concat(s.key, s.bound.Columns) {
			if c = s.quoted(c); !slices.Contains(names, c) {
				names = append(names, c)
			}
		}
		columns = strings.Join(names, ", ")
	}
	if args == nil {
		args = []any{}
	}
	var rows entsql.Rows
	err := s.tx.Tx.Query(s.ctx, "SELECT "+columns+" FROM "+s.quoted(s.table)+" WHERE "+where, args, &rows)
	if err == nil {
		var inner *sql.Rows
		if inner, err = plain(rows); err == nil {
			var read []rowkeys.Row
			if read, err = rowkeys.Read(inner, s.key, s.postgres()); err == nil {
				return read, nil
			}
		}
	}
	return nil, fmt.Errorf("entwrites: read the rows of the statement: %w", err)
}
