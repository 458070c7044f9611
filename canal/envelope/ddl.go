package envelope

import (
	"errors"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/ddl"
)

var errStatement = errors.New("a statement, and the log does not tell which rows it changed")

// lost is what is known of a statement of which nothing is: all tables may have other rows.
func (p place) lost() []event.Change {
	c := place{time: p.time}.change(event.Replace)
	c.Unread = errStatement
	return []event.Change{c}
}

// statement is what a statement does, and what its message says by itself where that is something
// else.
func (p place) statement(sql string, own ...event.Change) []event.Change {
	type what struct {
		schema, table string
		kind          event.Kind
	}
	var changes []event.Change
	told := map[what]bool{}
	add := func(c event.Change) {
		for _, w := range []what{{c.Schema, c.Table, c.Kind}, {c.Schema, c.Table, event.Replace}, {c.Schema, "", event.Replace}, {"", "", event.Replace}} {
			if told[w] {
				return
			}
		}
		told[what{c.Schema, c.Table, c.Kind}] = true
		changes = append(changes, c)
	}
	for _, c := range p.read(sql) {
		add(c)
	}
	for _, c := range own {
		add(c)
	}
	for _, c := range slices.Clone(changes) { // with lower_case_table_names=1 or 2 the rows come with names in small letters, and statements as they were written
		small := c
		small.Schema, small.Table = strings.ToLower(c.Schema), strings.ToLower(c.Table)
		if small.Schema == c.Schema && small.Table == c.Table {
			continue
		}
		if c.Kind == event.Truncate {
			small.Kind = event.Replace // with 0 it is another table, which is not empty
		}
		add(small)
	}
	return changes
}

// read tells what a statement does. The schema that its message names is that of one of its tables,
// and only that of its session if the statement names none itself: else its tables without a schema
// may be of any.
func (p place) read(sql string) []event.Change {
	effect := ddl.Read(sql, "")
	if p.schema != "" && !effect.Unknown && !slices.ContainsFunc(effect.Changes, func(c event.Change) bool { return c.Schema != "" }) {
		effect = ddl.Read(sql, p.schema)
	}
	for i := range effect.Changes {
		c := &effect.Changes[i]
		c.Time = p.time
		if effect.Unknown {
			c.Unread = errStatement
		}
	}
	return effect.Changes
}
