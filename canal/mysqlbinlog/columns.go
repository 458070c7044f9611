package mysqlbinlog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal/event"
)

// sqlType is the type of a column according to information_schema, in lower case.
type sqlType struct {
	name string // DATA_TYPE, such as "decimal"
	full string // COLUMN_TYPE, such as "decimal(8,2) unsigned zerofill"

	generated string // GENERATION_EXPRESSION, such as "row end"; "" if it is not generated
}

// typesOf returns the types of a table's columns, by their names in lower case. The map is empty
// if the user cannot see the table.
func (s *server) typesOf(t event.Table) (map[string]sqlType, error) {
	rows, err := s.ask("SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, GENERATION_EXPRESSION FROM "+
		"information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	types := make(map[string]sqlType, len(rows))
	for _, r := range rows {
		types[strings.ToLower(r[0])] = sqlType{strings.ToLower(r[1]), strings.ToLower(r[2]), strings.ToLower(r[3])}
	}
	return types, nil
}

// described is a table as the log and information_schema describe it.
type described struct {
	*tables
	table event.Table
	*replication.TableMapEvent
	types               map[string]sqlType
	needed              []string // the columns from which Bindings make keys
	collations, ofNames map[int]uint64
	unsigned            map[int]bool
	enums, sets         map[int][]string
}

var widths = map[byte]int{mysql.MYSQL_TYPE_TINY: 1, mysql.MYSQL_TYPE_SHORT: 2, mysql.MYSQL_TYPE_INT24: 3,
	mysql.MYSQL_TYPE_LONG: 4, mysql.MYSQL_TYPE_LONGLONG: 8}

// value returns the function that converts what go-mysql has read for column i to a Value. It
// returns nil if the type is unknown.
func (d *described) value(i int) func(any) event.Value {
	charset, meta := d.server.charsets[int(d.collations[i])], d.ColumnMeta[i]
	switch kind := d.ColumnType[i]; kind {
	case mysql.MYSQL_TYPE_TINY, mysql.MYSQL_TYPE_SHORT, mysql.MYSQL_TYPE_INT24, mysql.MYSQL_TYPE_LONG,
		mysql.MYSQL_TYPE_LONGLONG:
		if d.unsigned[i] {
			return d.padded(i, unsignedValue(widths[kind]))
		}
		return value
	case mysql.MYSQL_TYPE_NEWDECIMAL:
		if d.unsigned[i] {
			return d.padded(i, value)
		}
		return value
	case mysql.MYSQL_TYPE_YEAR:
		return d.yearValue(i)
	case mysql.MYSQL_TYPE_NULL, mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_DATETIME, mysql.MYSQL_TYPE_DATETIME2,
		mysql.MYSQL_TYPE_TIMESTAMP, mysql.MYSQL_TYPE_TIMESTAMP2, mysql.MYSQL_TYPE_TIME,
		mysql.MYSQL_TYPE_GEOMETRY, mysql.MYSQL_TYPE_VECTOR:
		return value
	case mysql.MYSQL_TYPE_FLOAT, mysql.MYSQL_TYPE_DOUBLE:
		d.warnNoKey(i, "it is FLOAT or DOUBLE, and the log does not show how the client formats it")
		return value
	case mysql.MYSQL_TYPE_JSON:
		d.warnNoKey(i, "it is JSON, and the log does not show how the client formats it")
		return jsonValue
	case mysql.MYSQL_TYPE_TIME2:
		return timeValue(int(meta))
	case mysql.MYSQL_TYPE_BIT:
		return unsignedValue(8)
	case mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING, mysql.MYSQL_TYPE_BLOB:
		return textValue(charset)
	case mysql.MYSQL_TYPE_STRING:
		names := decoder(d.server.charsets[int(d.ofNames[i])])
		switch real := byte(meta >> 8); {
		case real == mysql.MYSQL_TYPE_ENUM:
			return enumValue(decoded(d.enums[i], names))
		case real == mysql.MYSQL_TYPE_SET:
			return setValue(decoded(d.sets[i], names))
		case charset == "binary":
			return d.fixedValue(i)
		case d.server.padsChar:
			d.warnNoKey(i, "it is CHAR, and sql_mode has PAD_CHAR_TO_FULL_LENGTH")
			return inexact(textValue(charset))
		}
		return textValue(charset)
	}
	return nil
}

// typeOf returns the type of column i. ok is false if the user cannot see it.
func (d *described) typeOf(i int) (t sqlType, ok bool) {
	t, ok = d.types[strings.ToLower(string(d.ColumnName[i]))]
	return t, ok
}

// isKey reports whether a Binding makes keys of column i.
func (d *described) isKey(i int) bool {
	return slices.ContainsFunc(d.needed, func(c string) bool { return strings.EqualFold(c, string(d.ColumnName[i])) })
}

// warnNoKey warns, once for each table, that no key can be made of column i.
func (d *described) warnNoKey(i int, reason string) {
	if !d.isKey(i) || d.warned[d.table] {
		return
	}
	d.warned[d.table] = true
	d.warn("mysqlbinlog: no key can be made of a column: each change invalidates all keys", "table",
		d.table.Schema+"."+d.table.Name, "column", string(d.ColumnName[i]), "reason", reason)
}

// padded returns the function that converts an unsigned number of column i to a Value. The log does
// not contain the zeros of ZEROFILL, so the text of such a number is not exact. A column of a key
// whose type the user cannot see is not exact either.
func (d *described) padded(i int, plain func(any) event.Value) func(any) event.Value {
	t, ok := d.typeOf(i)
	if !ok && d.isKey(i) || strings.Contains(t.full, "zerofill") {
		return inexact(plain)
	}
	return plain
}

// yearValue returns the function that converts a YEAR to a Value. Clients show 0 as "0000" or as
// "0", and MariaDB's YEAR(2) in two digits.
func (d *described) yearValue(i int) func(any) event.Value {
	t, ok := d.typeOf(i)
	short, inaccessible := t.full == "year(2)", !ok && d.isKey(i) && d.server.flavor == mysql.MariaDBFlavor
	return func(v any) event.Value {
		n, isInt := v.(int)
		switch {
		case !isInt:
			return value(v)
		case short:
			return event.Inexact(fmt.Sprintf("%02d", n%100))
		case n == 0 || inaccessible:
			return event.Inexact(fmt.Sprintf("%04d", n))
		}
		return value(v)
	}
}

// fixedValue returns the function that converts a BINARY, or MariaDB's UUID, INET4 or INET6, to a
// Value. They look the same in the log, and have no trailing zero bytes there.
func (d *described) fixedValue(i int) func(any) event.Value {
	text := plain
	width := fixedWidth(d.ColumnMeta[i])
	t, _ := d.typeOf(i)
	switch {
	case t.name == "uuid":
		text = uuidText
	case t.name == "inet4", t.name == "inet6":
		text = addressText
	case t.name != "binary" && d.server.flavor == mysql.MariaDBFlavor:
		d.warnNoKey(i, "it may be BINARY, UUID or INET6, and the user cannot see which: grant SELECT on the table")
		return unknownValue
	}
	made := func(v any) event.Value {
		s, ok := v.(string)
		if !ok {
			return value(v)
		}
		b := make([]byte, max(width, len(s)))
		copy(b, s)
		if made, ok := text(b); ok {
			return event.TextValue(made)
		}
		return event.Value{}
	}
	if t.name == "inet6" {
		d.warnNoKey(i, "it is INET6, which clients shorten in another way")
		return inexact(made)
	}
	return made
}

// fixedWidth returns the width of a column of type STRING. Two of its bits are stored in the type
// (Field_string::do_save_field_metadata of the servers).
func fixedWidth(meta uint16) int {
	if kind := meta >> 8; kind&0x30 != 0x30 {
		return int(meta&0xff) | int((kind&0x30)^0x30)<<4
	}
	return int(meta & 0xff)
}
