package gormwrites

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// update executes an UPDATE of GORM.
func (p *Plugin) update(db *gorm.DB, original func(*gorm.DB)) { p.change(db, original, false) }

// delete executes a DELETE of GORM, which is an UPDATE if the model has a soft delete.
func (p *Plugin) delete(db *gorm.DB, original func(*gorm.DB)) { p.change(db, original, true) }

// change executes an UPDATE or DELETE, and puts the keys of its rows into the outbox.
func (p *Plugin) change(db *gorm.DB, original func(*gorm.DB), deletes bool) {
	s, ok := p.statementOf(db, original)
	if !ok {
		return
	}
	dry := dryRun(db, original)
	if dry.Error != nil {
		_ = db.AddError(dry.Error)
		return
	}
	if dry.Statement.SQL.Len() == 0 { // nothing to set
		original(db)
		return
	}
	removes := strings.HasPrefix(strings.TrimSpace(dry.Statement.SQL.String()), "DELETE")
	p.inTransaction(db, func() {
		before, known := s.rowsBefore(dry)
		if db.Error != nil {
			return
		}
		if !known {
			s.whole(original, !deletes)
			return
		}
		s.restrict(before)
		original(db)
		s.unrestrict()
		if db.Error != nil {
			return
		}
		var after []rowkeys.Row
		if !removes {
			after = s.rowsByKey(before, false)
		}
		changes, complete := rowkeys.Changes(before, after, deletes)
		s.touch(changes, complete)
	})
}

// create executes an INSERT, and puts the keys of its rows into the outbox.
func (p *Plugin) create(db *gorm.DB, original func(*gorm.DB)) {
	s, ok := p.statementOf(db, original)
	if !ok {
		return
	}
	p.inTransaction(db, func() {
		if given, _ := s.primaryKeys(); len(given) > rowkeys.MaxRows || len(s.key) == 0 || s.setsKey() {
			s.whole(original, true)
			return
		}
		changes, complete := s.insert(original)
		if db.RowsAffected > 0 || !complete {
			s.touch(changes, complete)
		}
	})
}

// insert executes an INSERT and returns the changes of its rows. It returns false if they are not
// known.
func (s *statement) insert(original func(*gorm.DB)) (changes []event.Change, complete bool) {
	conflict, upsert := s.Statement.Clauses["ON CONFLICT"]
	given, explicit := s.primaryKeys()
	var before []rowkeys.Row
	if upsert && explicit {
		before = s.rowsByKey(given, true)
	}
	if original(s.DB); s.DB.Error != nil || s.RowsAffected == 0 {
		return nil, true
	}
	inserted, complete := s.primaryKeys()
	if !complete || !explicit && !s.trustsKeys(len(inserted), upsert) {
		return nil, false
	}
	on, _ := conflict.Expression.(clause.OnConflict)
	after := s.rowsByKey(inserted, false)
	changes = rowkeys.Inserted(before, after, s.key, upsert && !on.DoNothing)
	return changes, on.DoNothing && explicit || len(after) == distinct(inserted)
}

// A statement is one that changes a bound table.
type statement struct {
	*gorm.DB
	plugin  *Plugin
	table   *rowkeys.Table // nil: the table is not known
	key     []string       // columns of the primary key; none: not known
	columns []clause.Column
}

// statementOf returns the statement of db. It returns false if no key depends on the statement, and
// has then executed it.
func (p *Plugin) statementOf(db *gorm.DB, original func(*gorm.DB)) (*statement, bool) {
	if db.Error != nil || db.DryRun {
		original(db)
		return nil, false
	}
	s := &statement{DB: db, plugin: p}
	name, known := tableOf(db.Statement)
	if known {
		if s.table = p.tables.Table(name); s.table == nil {
			original(db)
			return nil, false
		}
	}
	p.tables.CountStatement()
	if schema := db.Statement.Schema; known && schema != nil && db.Statement.SQL.Len() == 0 {
		s.key = schema.PrimaryFieldDBNames
		s.columns = s.selected()
	}
	return s, true
}

var plainName = regexp.MustCompile("^[`\"\\[]?\\w+[`\"\\]]?(\\.[`\"\\[]?\\w+[`\"\\]]?)?$")

// tableOf returns the name of the table of a statement. It returns false if the name is not known,
// for example because Table was called with an expression.
func tableOf(s *gorm.Statement) (name string, known bool) {
	name = s.Table
	if s.TableExpr != nil {
		name = s.TableExpr.SQL
	}
	if !plainName.MatchString(name) {
		return "", false
	}
	return strings.NewReplacer("`", "", `"`, "", "[", "", "]", "").Replace(name), true
}

// selected returns the columns to read: the primary key and those of the Bindings.
func (s *statement) selected() (columns []clause.Column) {
	if len(s.table.Columns) == 0 {
		return []clause.Column{{Name: "*", Raw: true}}
	}
	seen := map[string]bool{}
	for _, name := range append(append([]string(nil), s.key...), s.table.Columns...) {
		for _, known := range s.Statement.Schema.DBNames { // in the case of the database
			if strings.EqualFold(known, name) {
				name = known
				break
			}
		}
		if !seen[name] {
			seen[name] = true
			columns = append(columns, clause.Column{Table: clause.CurrentTable, Name: name})
		}
	}
	return columns
}

// whole executes a statement whose rows are not known, and puts all keys of the loaders into the
// outbox. adds reports whether the statement may add keys that a filter has to admit.
func (s *statement) whole(original func(*gorm.DB), adds bool) {
	keys, err := s.wholeKeys(adds)
	if err != nil {
		_ = s.AddError(err)
		return
	}
	if original(s.DB); s.DB.Error == nil {
		s.plugin.touch(s.DB, keys)
	}
}

func (s *statement) wholeKeys(adds bool) (keys []cacheaside.Key, err error) {
	if named, ok := touched(s.DB); ok {
		return named, nil
	}
	if s.table == nil {
		keys, err = s.plugin.tables.Whole(adds)
	} else {
		keys, err = s.table.Whole(adds)
	}
	if err != nil {
		return nil, fmt.Errorf("gormwrites: %w", err)
	}
	return keys, nil
}

// touch puts the keys of changes into the outbox. If they are not complete, all keys of the loaders
// take their place.
func (s *statement) touch(changes []event.Change, complete bool) {
	if s.DB.Error != nil {
		return
	}
	var keys []cacheaside.Key
	var err error
	if complete {
		named, _ := touched(s.DB)
		if keys, err = s.table.Keys(changes); err != nil {
			err = fmt.Errorf("gormwrites: %w", err)
		}
		keys = append(keys, named...)
	} else {
		keys, err = s.wholeKeys(true)
	}
	if s.AddError(err) == nil {
		s.plugin.touch(s.DB, keys)
	}
}

// dryRun returns a session whose statement is complete, but was not executed.
func dryRun(db *gorm.DB, original func(*gorm.DB)) *gorm.DB {
	dry := db.Session(&gorm.Session{DryRun: true, Initialized: true})
	dry.Statement.BuildClauses = db.Statement.BuildClauses
	dry.Statement.ReflectValue = copied(db.Statement.ReflectValue)
	dry.Statement.Result = nil
	original(dry)
	return dry
}

// copied returns a copy of the rows of a statement, because GORM assigns the new values to them.
func copied(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Struct:
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		return c
	case reflect.Slice, reflect.Array:
		c := reflect.New(v.Type()).Elem()
		if v.Kind() == reflect.Slice {
			c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		}
		for i := range v.Len() {
			item := v.Index(i)
			if item.Kind() == reflect.Pointer && !item.IsNil() && item.Elem().Kind() == reflect.Struct {
				pointer := reflect.New(item.Elem().Type())
				pointer.Elem().Set(item.Elem())
				item = pointer
			}
			c.Index(i).Set(item)
		}
		return c
	}
	return v
}

// exec executes the SQL of Exec.
func (p *Plugin) exec(db *gorm.DB, original func(*gorm.DB)) {
	if db.Error != nil || db.DryRun || !rowkeys.ChangesRows(db.Statement.SQL.String()) {
		original(db)
		return
	}
	keys, err := p.rawKeys(db)
	switch {
	case err != nil:
		_ = db.AddError(err)
	case len(keys) == 0:
		original(db)
	default:
		p.inTransaction(db, func() {
			if original(db); db.Error == nil {
				p.touch(db, keys)
			}
		})
	}
}

// query executes a query. The SQL of Raw may change rows, as UPDATE ... RETURNING does.
func (p *Plugin) query(db *gorm.DB, original func(*gorm.DB)) {
	if db.Error != nil || db.DryRun || db.Statement.SQL.Len() == 0 ||
		!rowkeys.ChangesRows(db.Statement.SQL.String()) {
		original(db)
		return
	}
	keys, err := p.rawKeys(db)
	if _, ok := db.Statement.ConnPool.(gorm.TxCommitter); err == nil && !ok && len(keys) > 0 {
		err = p.tables.Refuse(errNoTransaction)
	}
	if _ = db.AddError(err); err != nil {
		return
	}
	p.touch(db, keys) // before the query, because its rows may stay open
	original(db)
}

var (
	errNoTransaction = errors.New("gormwrites: Raw with a statement that changes rows needs a transaction " +
		"(gorm.DB.Transaction), so that it is committed together with the keys of its rows")
	errRaw = errors.New("gormwrites: Exec and Raw do not say which rows they change: name their keys by " +
		"Scopes(gormwrites.Touches(keys...)), or use a model (Options.RefuseRaw)")
)

// rawKeys returns the keys of SQL that changes rows.
func (p *Plugin) rawKeys(db *gorm.DB) ([]cacheaside.Key, error) {
	p.tables.CountRaw()
	if _, ok := touched(db); !ok && p.options.RefuseRaw {
		return nil, p.tables.Refuse(errRaw)
	}
	return (&statement{DB: db, plugin: p}).wholeKeys(true)
}
