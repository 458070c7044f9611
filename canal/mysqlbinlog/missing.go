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

// misspelt is why a table is missing although t is there.
func misspelt(t event.Table) string {
	return "the server has " + t.Schema + "." + t.Name + ": names are compared with upper and lower case"
}

// missing returns the tables that are needed and are not there, each with how that is known, and
// those of which the user may not see whether they are there, by their names in lower case.
func (s *server) missing(need event.Need) (missing map[event.Table]string, unseen map[event.Table]event.Table, err error) {
	missing, unseen = map[event.Table]string{}, map[event.Table]event.Table{}
	for _, t := range slices.SortedFunc(maps.Keys(need.Tables), compareTables) {
		kind, err := s.kindOf(t)
		if err != nil {
			return nil, nil, err
		}
		if strings.HasSuffix(kind, "VIEW") {
			missing[t] = "it is a view: bind the tables that it reads, whose changes the log has"
		}
		if kind != "" {
			continue
		}
		visible, err := s.wouldSee(t)
		if err != nil {
			return nil, nil, err
		}
		if !visible {
			unseen[lower(t)] = t
			continue
		}
		if missing[t], err = s.whyMissing(t); err != nil {
			return nil, nil, err
		}
	}
	return missing, unseen, nil
}

// kindOf returns what a table is, such as "BASE TABLE", "VIEW" or "SYSTEM VERSIONED"; "" if there
// is none of this name, or the user may not see it.
func (s *server) kindOf(t event.Table) (string, error) {
	rows, err := s.ask("SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.Schema, t.Name)
	for _, r := range rows {
		if r[0] == t.Schema && r[1] == t.Name { // the server may compare without regard to case
			return strings.ToUpper(r[2]), err
		}
	}
	return "", err
}

// wouldSee reports whether the user would see a table that information_schema does not have.
// Servers say that there is no such table only to those who may read it, by whatever grant.
func (s *server) wouldSee(t event.Table) (bool, error) {
	quoted := func(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
	_, err := s.ask("SELECT 1 FROM " + quoted(t.Schema) + "." + quoted(t.Name) + " LIMIT 0")
	e, ok := errors.AsType[*mysql.MyError](err)
	if !ok {
		return false, err // if there is no error, it was created just now
	}
	return e.Code == mysql.ER_NO_SUCH_TABLE || e.Code == mysql.ER_BAD_DB_ERROR, nil
}

// whyMissing says what is there instead of a table.
func (s *server) whyMissing(t event.Table) (string, error) {
	rows, err := s.ask("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE LOWER(TABLE_SCHEMA) = LOWER(?) AND LOWER(TABLE_NAME) = LOWER(?)", t.Schema, t.Name)
	if err != nil || len(rows) == 0 {
		return "the server has no such table", err
	}
	return misspelt(event.Table{Schema: rows[0][0], Name: rows[0][1]}), nil
}
