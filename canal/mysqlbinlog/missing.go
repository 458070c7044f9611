package mysqlbinlog

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
)

func lower(t event.Table) event.Table {
	return event.Table{Schema: strings.ToLower(t.Schema), Name: strings.ToLower(t.Name)}
}

// differsInCase returns the reason why a table is missing although t exists.
func differsInCase(t event.Table) string {
	return "the server has " + t.Schema + "." + t.Name + ": table names are case-sensitive"
}

// missing returns the needed tables that do not exist, each with the reason. It also returns the
// needed tables that the user has no access to, by their names in lower case: these may exist.
func (s *server) missing(
	need event.Need,
) (missing map[event.Table]string, inaccessible map[event.Table]event.Table, err error) {
	missing, inaccessible = map[event.Table]string{}, map[event.Table]event.Table{}
	for _, t := range slices.SortedFunc(maps.Keys(need.Tables), compareTables) {
		kind, err := s.kindOf(t)
		if err != nil {
			return nil, nil, err
		}
		if strings.HasSuffix(kind, "VIEW") {
			missing[t] = "it is a view: bind the tables that it reads, because the log only contains their changes"
		}
		if kind != "" {
			continue
		}
		visible, err := s.canRead(t)
		if err != nil {
			return nil, nil, err
		}
		if !visible {
			inaccessible[lower(t)] = t
			continue
		}
		if missing[t], err = s.whyMissing(t); err != nil {
			return nil, nil, err
		}
	}
	return missing, inaccessible, nil
}

// kindOf returns the type of a table, such as "BASE TABLE", "VIEW" or "SYSTEM VERSIONED". It
// returns "" if there is no table with this name, or the user has no access to it.
func (s *server) kindOf(t event.Table) (string, error) {
	rows, err := s.ask("SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE "+
		"TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.Schema, t.Name)
	for _, r := range rows {
		if r[0] == t.Schema && r[1] == t.Name { // the server may ignore case
			return strings.ToUpper(r[2]), err
		}
	}
	return "", err
}

// canRead reports whether the user would have access to a table that information_schema does not
// list. Only to users with some privilege to read a table does a server report that it does not
// exist.
func (s *server) canRead(t event.Table) (bool, error) {
	quoted := func(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
	_, err := s.ask("SELECT 1 FROM " + quoted(t.Schema) + "." + quoted(t.Name) + " LIMIT 0")
	e, ok := errors.AsType[*mysql.MyError](err)
	if !ok {
		return false, err // without an error, the table was created just now
	}
	return e.Code == mysql.ER_NO_SUCH_TABLE || e.Code == mysql.ER_BAD_DB_ERROR, nil
}

// whyMissing returns the reason why a table is missing, with a similar table if there is one.
func (s *server) whyMissing(t event.Table) (string, error) {
	rows, err := s.ask("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE LOWER(TABLE_SCHEMA) = "+
		"LOWER(?) AND LOWER(TABLE_NAME) = LOWER(?)", t.Schema, t.Name)
	if err != nil || len(rows) == 0 {
		return "the server has no such table", err
	}
	return differsInCase(event.Table{Schema: rows[0][0], Name: rows[0][1]}), nil
}
