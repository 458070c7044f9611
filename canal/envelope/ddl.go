package envelope

import (
	"errors"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/ddl"
)

var errStatement = errors.New("a statement, and the log does not tell which rows it changed")

// lost returns the change of a statement whose effect is not known: all tables may have other rows.
func (p place) lost() []event.Change {
	c := place{time: p.time}.change(event.Replace)
	c.Unread = errStatement
	return []event.Change{c}
}

// statement returns the changes that a statement makes. Only its text is read, because a message
// names one table, and a statement may concern several.
//
// The schema of the message is that of one of its tables. It is that of the session only if the
// statement names none itself. Otherwise tables without a schema may be of any.
func (p place) statement(sql string) []event.Change {
	effect := ddl.Read(sql, "")
	if p.schema != "" && !effect.Unknown && !slices.ContainsFunc(effect.Changes, func(c event.Change) bool { return c.Schema != "" }) {
		effect = ddl.Read(sql, p.schema)
	}
	if sql == "" || effect.Unknown {
		return p.lost()
	}
	var changes []event.Change
	for _, c := range effect.Changes {
		c.Time = p.time
		changes = append(changes, c)
		small := c
		small.Schema, small.Table = strings.ToLower(c.Schema), strings.ToLower(c.Table)
		if small.Schema == c.Schema && small.Table == c.Table {
			continue
		}
		// With lower_case_table_names=1 or 2 the rows come with names in lower case, and statements
		// as they were written.
		if c.Kind == event.Truncate {
			small.Kind = event.Replace // with 0 it is another table, which is not empty
		}
		changes = append(changes, small)
	}
	return changes
}
