package envelope

import (
	"errors"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/ddl"
)

var errStatement = errors.New("a statement was logged instead of the rows that it changed")

// unknownEffect returns the change for a statement whose effect is unknown: all tables may have
// other rows.
func (o origin) unknownEffect() []event.Change {
	c := origin{time: o.time}.change(event.Replace)
	c.Unread = errStatement
	return []event.Change{c}
}

// statement returns the changes that a statement makes. It reads only the text, because a message
// names one table and a statement may concern several.
//
// The schema of a message is the schema of one of its tables. It is the session's schema only if
// the statement names no schema itself. Otherwise tables without a schema may belong to any.
//
// failed is the error of a message that could not be read completely. Then the statement may
// concern any table, because a message only names some of them.
func (o origin) statement(sql string, failed error) ([]event.Change, error) {
	if failed != nil {
		return []event.Change{origin{time: o.time}.change(event.Replace)}, failed
	}
	effect := ddl.Read(sql, "")
	if o.schema != "" && !effect.Unknown &&
		!slices.ContainsFunc(effect.Changes, func(c event.Change) bool { return c.Schema != "" }) {
		effect = ddl.Read(sql, o.schema)
	}
	if sql == "" || effect.Unknown {
		return o.unknownEffect(), nil
	}
	var changes []event.Change
	for _, c := range effect.Changes {
		c.Time = o.time
		changes = append(changes, c)
		small := c
		small.Schema, small.Table = strings.ToLower(c.Schema), strings.ToLower(c.Table)
		if small.Schema == c.Schema && small.Table == c.Table {
			continue
		}
		// With lower_case_table_names=1 or 2 rows are sent with table names in lower case, but
		// statements have their original spelling.
		if c.Kind == event.Truncate {
			small.Kind = event.Replace // with 0 this is another table, which is not empty
		}
		changes = append(changes, small)
	}
	return changes, nil
}
