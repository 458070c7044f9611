package pglogical

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/cacheaside/cacheaside/canal/event"
)

// relation describes the rows of a relation, as the server describes it before its first change.
type relation struct {
	tables  []event.Table // the needed tables that contain its rows
	own     event.Table
	columns *event.Columns             // nil if no table needed it when it was described
	message *pglogrepl.RelationMessage // the description, if columns is nil; see maxDescribed
	values  []converter
	text    textDecoder
	flags   []bool // whether a column is part of the replica identity, as the server describes it
	full    bool   // that identity is FULL, so that the server sends all columns of old rows
	key     []bool // whether a column is part of the replica identity of the rows; see restrict
	keyOnly bool   // old rows have only the columns of key, in spite of their type in the log
}

const (
	inKey        = 1   // a flag of a column
	identityFull = 'f' // pg_class.relreplident
)

// newRelation returns a relation without columns.
func newRelation(m *pglogrepl.RelationMessage, text textDecoder) *relation {
	r := &relation{own: event.Table{Schema: text.name(m.Namespace), Name: text.name(m.RelationName)}, text: text}
	if r.own.Schema == "" { // the protocol's abbreviation
		r.own.Schema = "pg_catalog"
	}
	return r
}

// describe adds the columns.
func (r *relation) describe(m *pglogrepl.RelationMessage, values []converter) {
	r.values, r.flags, r.full = values, make([]bool, len(m.Columns)), m.ReplicaIdentity == identityFull
	names := make([]string, len(m.Columns))
	for i, c := range m.Columns {
		names[i], r.flags[i] = r.text.name(c.Name), c.Flags&inKey != 0
	}
	r.columns, r.key = event.NewColumns(names...), r.flags
}

// restrict sets key to the columns that are part of the identity of each of these partitions. With
// publish_via_partition_root the server describes the identity of the partitioned table, and sends
// the old rows that the identity of the partition has: the other columns are NULL, or there is no
// old row, also if the partitioned table has FULL.
func (r *relation) restrict(partitions []member) {
	r.key, r.keyOnly = slices.Clone(r.flags), false
	for _, m := range partitions {
		if m.full() {
			continue
		}
		r.keyOnly = true
		for i, name := range r.columns.Names() {
			r.key[i] = r.key[i] && slices.Contains(m.Key, name)
		}
	}
}

var errTuple = errors.New("a row has another number of columns than its table")

// row converts a row. absent is the Value of a column that was not sent because it is large and has
// not changed (TOAST). If keyOnly is set, the row has only the columns of the replica identity, and
// all others are unknown.
func (r *relation) row(t *pglogrepl.TupleData, absent event.Value, keyOnly bool) (event.Row, error) {
	if t == nil || len(t.Columns) != len(r.values) {
		return event.Row{}, errTuple
	}
	values := make([]event.Value, len(t.Columns))
	for i, c := range t.Columns {
		switch {
		case keyOnly && !r.key[i]: // is sent as NULL
		case c.DataType == pglogrepl.TupleDataTypeNull:
			values[i] = event.Null()
		case c.DataType == pglogrepl.TupleDataTypeToast:
			values[i] = absent
		case c.DataType == pglogrepl.TupleDataTypeText:
			if text, ok := r.text.decode(c.Data); ok {
				values[i] = r.values[i](text)
			}
		default:
			return event.Row{}, fmt.Errorf("column %s has an unknown format", r.columns.Names()[i])
		}
	}
	return event.NewRow(r.columns, values)
}

// unchanged returns the row before an update for which the server sent no old row: its replica
// identity has not changed, and nothing else is known.
func (r *relation) unchanged(after event.Row) (event.Row, error) {
	values := make([]event.Value, 0, len(r.key))
	for i, name := range r.columns.Names() {
		v := event.Value{}
		if r.key[i] && (r.keyOnly || !r.full) { // with FULL there is an old row, except of a new partition
			v = after.Get(name)
		}
		values = append(values, v)
	}
	return event.NewRow(r.columns, values)
}

func (r *relation) inserted(m *pglogrepl.InsertMessage) (c event.Change, err error) {
	c.Kind = event.Insert
	c.After, err = r.row(m.Tuple, event.Value{}, false)
	return c, err
}

func (r *relation) updated(m *pglogrepl.UpdateMessage) (c event.Change, err error) {
	c.Kind = event.Update
	// The values that are not sent have not changed. They are unknown, unless Before has them.
	if c.After, err = r.row(m.NewTuple, event.Omitted(), false); err != nil {
		return c, err
	}
	if m.OldTuple == nil {
		c.Before, err = r.unchanged(c.After)
		return c, err
	}
	c.Before, err = r.row(m.OldTuple, event.Value{}, r.keyOnly || m.OldTupleType == pglogrepl.UpdateMessageTupleTypeKey)
	return c, err
}

func (r *relation) deleted(m *pglogrepl.DeleteMessage) (c event.Change, err error) {
	c.Kind = event.Delete
	c.Before, err = r.row(m.OldTuple, event.Value{}, r.keyOnly || m.OldTupleType == pglogrepl.DeleteMessageTupleTypeKey)
	return c, err
}

// size returns the approximate memory size of the rows of a message.
func size(bytes, columns int) int { return 100 + 48*columns + bytes }
