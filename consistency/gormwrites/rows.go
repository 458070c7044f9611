package gormwrites

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// simpleClauses are those of a statement whose rows a SELECT with the same clauses reads.
var simpleClauses = []string{"UPDATE", "SET", "DELETE", "FROM", "WHERE", "ORDER BY", "LIMIT", "RETURNING"}

// rowsBefore reads and locks the rows that a statement changes, by the clauses of its dry run. It
// returns false if they cannot be read, or are too many.
func (s *statement) rowsBefore(dry *gorm.DB) ([]rowkeys.Row, bool) {
	q := dry.Statement
	if len(s.key) == 0 || len(q.Joins) > 0 {
		return nil, false
	}
	for name, c := range q.Clauses {
		if slices.Contains(q.BuildClauses, name) && !slices.Contains(simpleClauses, name) {
			return nil, false
		}
		if from, ok := c.Expression.(clause.From); ok && (len(from.Tables) > 0 || len(from.Joins) > 0) {
			return nil, false
		}
	}
	selection := map[string]clause.Clause{}
	for _, name := range []string{"WHERE", "ORDER BY", "LIMIT"} {
		if c, ok := q.Clauses[name]; ok && (name == "WHERE" || slices.Contains(q.BuildClauses, name)) {
			selection[name] = c
		}
	}
	rows := s.read(selection, rowkeys.MaxRows+1, true)
	return rows, len(rows) <= rowkeys.MaxRows
}

// rowsByKey reads the rows with the primary keys of others, and locks them if lock is set.
func (s *statement) rowsByKey(others []rowkeys.Row, lock bool) []rowkeys.Row {
	if len(others) == 0 {
		return nil
	}
	where := clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: []clause.Expression{byKey{s.key, others}}}}
	return s.read(map[string]clause.Clause{"WHERE": where}, 0, lock)
}

// read reads rows in the transaction of the statement. It adds an error to the statement if it
// fails.
func (s *statement) read(clauses map[string]clause.Clause, limit int, lock bool) []rowkeys.Row {
	session := s.DB.Session(&gorm.Session{NewDB: true, Initialized: true, SkipHooks: true})
	q := session.Statement
	q.ConnPool, q.Context = s.Statement.ConnPool, s.Statement.Context
	q.Table, q.TableExpr = s.Statement.Table, s.Statement.TableExpr
	q.Schema, q.Model = s.Statement.Schema, s.Statement.Model
	q.Clauses = clauses
	q.AddClause(clause.Select{Columns: s.columns})
	q.AddClause(clause.From{})
	if _, limited := clauses["LIMIT"]; limit > 0 && !limited {
		q.AddClause(clause.Limit{Limit: &limit})
	}
	if lock && s.Dialector.Name() != "sqlite" {
		q.AddClause(clause.Locking{Strength: "UPDATE"})
	}
	q.Build("SELECT", "FROM", "WHERE", "ORDER BY", "LIMIT", "FOR")
	if session.Error != nil {
		_ = s.AddError(session.Error)
		return nil
	}
	rows, err := q.ConnPool.QueryContext(q.Context, q.SQL.String(), q.Vars...)
	if err == nil {
		var read []rowkeys.Row
		if read, err = rowkeys.Read(rows, s.key, s.Dialector.Name() == "postgres"); err == nil {
			return read
		}
	}
	_ = s.AddError(fmt.Errorf("gormwrites: read the rows of the statement: %w", err))
	return nil
}

// restrict limits the statement to the rows that were read, so that it does not change rows whose
// old values are not known.
func (s *statement) restrict(rows []rowkeys.Row) {
	exprs := []clause.Expression{byKey{s.key, rows}}
	c := s.Statement.Clauses["WHERE"]
	if where, ok := c.Expression.(clause.Where); ok && len(where.Exprs) > 0 {
		exprs = append([]clause.Expression{enclosed{where}}, exprs...)
	}
	c.Name, c.Expression = "WHERE", clause.Where{Exprs: exprs}
	s.Statement.Clauses["WHERE"] = c
}

// unrestrict undoes restrict, because the program may use the conditions of the statement again.
func (s *statement) unrestrict() {
	c := s.Statement.Clauses["WHERE"]
	where, _ := c.Expression.(clause.Where)
	var exprs []clause.Expression
	for _, e := range where.Exprs {
		switch e := e.(type) {
		case byKey:
		case enclosed:
			exprs = append(exprs, e.where.Exprs...)
		default:
			exprs = append(exprs, e)
		}
	}
	c.Expression = clause.Where{Exprs: exprs}
	s.Statement.Clauses["WHERE"] = c
	if len(exprs) == 0 {
		delete(s.Statement.Clauses, "WHERE")
	}
}

// enclosed is a condition in parentheses.
type enclosed struct{ where clause.Where }

// Build implements clause.Expression.
func (e enclosed) Build(b clause.Builder) {
	_ = b.WriteByte('(')
	e.where.Build(b)
	_ = b.WriteByte(')')
}

// byKey is the condition that the primary key is that of one of the rows.
type byKey struct {
	columns []string
	rows    []rowkeys.Row
}

// Build implements clause.Expression.
func (k byKey) Build(b clause.Builder) {
	column := func(i int) clause.Column { return clause.Column{Table: clause.CurrentTable, Name: k.columns[i]} }
	if len(k.columns) == 1 {
		values := make([]any, len(k.rows))
		for i, r := range k.rows {
			values[i] = r.Key[0]
		}
		clause.IN{Column: column(0), Values: values}.Build(b)
		return
	}
	if len(k.rows) == 0 {
		_, _ = b.WriteString("1 = 0")
		return
	}
	_ = b.WriteByte('(')
	for n, r := range k.rows {
		if n > 0 {
			_, _ = b.WriteString(" OR ")
		}
		_ = b.WriteByte('(')
		for i := range k.columns {
			if i > 0 {
				_, _ = b.WriteString(" AND ")
			}
			clause.Eq{Column: column(i), Value: r.Key[i]}.Build(b)
		}
		_ = b.WriteByte(')')
	}
	_ = b.WriteByte(')')
}

// primaryKeys returns the primary keys of the rows of an INSERT. It returns false if one is not
// set, or if they are not rows of the model.
func (s *statement) primaryKeys() (rows []rowkeys.Row, all bool) {
	if s.Statement.Schema == nil || len(s.key) == 0 {
		return nil, false
	}
	if m, ok := s.Statement.Dest.(map[string]any); ok {
		return s.keysOfMap(m)
	}
	if m, ok := s.Statement.Dest.(*map[string]any); ok && m != nil {
		return s.keysOfMap(*m)
	}
	values := []reflect.Value{s.Statement.ReflectValue}
	if v := s.Statement.ReflectValue; v.Kind() == reflect.Slice || v.Kind() == reflect.Array {
		values = values[:0]
		for i := range v.Len() {
			values = append(values, v.Index(i))
		}
	}
	all = true
	for _, v := range values {
		v = reflect.Indirect(v)
		row := rowkeys.Row{}
		if v.Kind() != reflect.Struct || v.Type() != s.Statement.Schema.ModelType {
			return make([]rowkeys.Row, len(values)), false
		}
		for _, f := range s.Statement.Schema.PrimaryFields {
			value, zero := f.ValueOf(s.Statement.Context, v)
			all = all && !zero
			row.Key = append(row.Key, value)
		}
		row.Text = fmt.Sprintf("%q", row.Key)
		rows = append(rows, row)
	}
	return rows, all
}

// keysOfMap is primaryKeys for the values of one row.
func (s *statement) keysOfMap(values map[string]any) ([]rowkeys.Row, bool) {
	row := rowkeys.Row{}
	for _, f := range s.Statement.Schema.PrimaryFields {
		v, ok := values[f.DBName]
		if !ok {
			v, ok = values[f.Name]
		}
		if !ok || v == nil {
			return []rowkeys.Row{{}}, false
		}
		row.Key = append(row.Key, v)
	}
	row.Text = fmt.Sprintf("%q", row.Key)
	return []rowkeys.Row{row}, true
}

// distinct returns the number of different primary keys.
func distinct(rows []rowkeys.Row) int {
	texts := map[string]bool{}
	for _, r := range rows {
		texts[r.Text] = true
	}
	return len(texts)
}

// trustsKeys reports whether the primary keys that GORM has set after an INSERT of n rows are those
// of the rows. Without RETURNING, GORM calculates them from the first one, which is wrong if the
// server does not increment by one, or if the INSERT has updated rows.
func (s *statement) trustsKeys(n int, upsert bool) bool {
	_, returning := s.Statement.Clauses["RETURNING"]
	returning = returning && slices.Contains(s.Statement.BuildClauses, "RETURNING")
	switch {
	case upsert:
		return returning && s.RowsAffected == int64(n)
	case returning || n == 1:
		return true
	case s.Dialector.Name() != "mysql":
		return false
	}
	var step int
	row := s.Statement.ConnPool.QueryRowContext(s.Statement.Context, "SELECT @@SESSION.auto_increment_increment")
	return row != nil && row.Scan(&step) == nil && step == 1
}

// setsKey reports whether an INSERT may change the primary key of a row that exists.
func (s *statement) setsKey() bool {
	conflict, upsert := s.Statement.Clauses["ON CONFLICT"]
	c, ok := conflict.Expression.(clause.OnConflict)
	return upsert && !ok || slices.ContainsFunc(c.DoUpdates, func(a clause.Assignment) bool {
		return slices.ContainsFunc(s.key, func(k string) bool { return strings.EqualFold(k, a.Column.Name) })
	})
}
