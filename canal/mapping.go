package canal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A Mapping maps a row of a table to a key of a loader or filter, or to the name of a group. Use
// IntColumn, TextColumn, Text, or your own.
type Mapping[K any] struct {
	// Columns are the columns that Key reads. They are passed to the Source (Need.Tables), which
	// can report at the start that its database does not log them with each change, as with
	// binlog_row_image=MINIMAL.
	Columns []string

	// Key returns the key of a row. It returns ok=false if the row has no key, for example because
	// the e-mail address that serves as the key is NULL. It is called for the row before and
	// after the change, by one goroutine at a time.
	//
	// If Key returns an error or panics, the row is not understood, and all keys of the loader are
	// invalidated. The same happens, without a call of Key, if one of Columns is unknown or not
	// exact (event.Value.Exact): the text of the key could differ from that of the cached key.
	Key func(event.Row) (key K, ok bool, err error)

	example string // a text that Key can return; "" if that is not known

	number bool  // Key compares numbers, so the text need not be exact
	err    error // why the arguments of Text are wrong
}

// errInexact is the reason why no key is made of a value.
var errInexact = errors.New(
	"the text of its value may differ from what the client shows (FLOAT, DOUBLE, JSON, ZEROFILL and others, or a " +
		"type that the source cannot determine)")

// usable returns an error if the Mapping itself is wrong.
func (m *Mapping[K]) usable() error {
	if m.Key == nil {
		return errors.New("Mapping.Key is nil")
	}
	return m.err
}

// check returns an error if a column of the key is unknown, or if its text may differ from the
// client's.
func (m *Mapping[K]) check(r event.Row) error {
	if m.number { // Key checks the value
		return nil
	}
	for _, column := range m.Columns {
		switch v := r.Get(column); {
		case !v.Known(): // its Text is "", as that of an empty text
			return fmt.Errorf("column %s: %w", column, event.ErrUnknownColumn)
		case !v.Exact():
			return fmt.Errorf("column %s: %w", column, errInexact)
		}
	}
	return nil
}

// keyOf returns the key of a row, after check.
func (m *Mapping[K]) keyOf(r event.Row) (key K, ok bool, err error) {
	if err := m.check(r); err != nil {
		return key, false, err
	}
	return m.Key(r)
}

// IntColumn returns the Mapping of a loader whose keys are the values of an integer column. A row
// with NULL in the column has no key.
func IntColumn[K ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64](
	column string,
) Mapping[K] {
	signed := ^K(0) < 0
	return Mapping[K]{Columns: []string{column}, number: true, Key: func(r event.Row) (key K, ok bool, err error) {
		v := r.Get(column)
		if v.IsNull() {
			return 0, false, nil
		}
		var fits bool
		if signed {
			var n int64
			n, err = v.Int64()
			key = K(n)
			fits = int64(key) == n
		} else {
			var n uint64
			n, err = v.Uint64()
			key = K(n)
			fits = uint64(key) == n
		}
		switch {
		case err != nil:
			return 0, false, fmt.Errorf("column %s: %w", column, err)
		case !fits:
			return 0, false, fmt.Errorf("column %s: the number is out of range for the loader's keys", column)
		}
		return key, true, nil
	}}
}

// TextColumn returns the Mapping of a loader whose keys are the values of a column, as text. A row
// with NULL in the column has no key. Use TextColumn for text, DECIMAL, dates and times; prefer
// IntColumn for integers. If the text of a value is not certain (event.Value.Exact), each change
// of its row invalidates all keys of the loader.
//
// If the collation of the column ignores case or accents, the database also finds the row "foo"
// for the key "Foo". The row is then cached under both keys, but only one of them is invalidated.
// Always pass one spelling to the loader, and make the same spelling in a Mapping of your own.
func TextColumn[K ~string](column string) Mapping[K] {
	return Mapping[K]{Columns: []string{column}, Key: func(r event.Row) (key K, ok bool, err error) {
		v := r.Get(column)
		switch {
		case !v.Known():
			return "", false, fmt.Errorf("column %s: %w", column, event.ErrUnknownColumn)
		case v.IsNull():
			return "", false, nil
		}
		return K(v.Text()), true, nil
	}}
}

// TextOf returns a Mapping whose texts are those that text returns for the values of a column. A
// row with NULL in the column has no key. The rules of TextColumn apply.
//
//	canal.TextOf("category", byCategory.Of) // the groups of a cacheaside.GroupKind, for BindGroup
//	canal.TextOf("email", strings.ToLower)  // the keys of a loader with that Normalize
func TextOf(column string, text func(value string) string) Mapping[string] {
	m := TextColumn[string](column)
	switch {
	case column == "":
		m.err = errors.New("TextOf: the column is empty")
	case text == nil:
		m.err = errors.New("TextOf: the function is nil")
	}
	value := m.Key
	m.Key = func(r event.Row) (key string, ok bool, err error) {
		if key, ok, err = value(r); !ok || err != nil {
			return "", false, err
		}
		return text(key), true, nil
	}
	return m
}

// Text returns a Mapping whose texts are the values of a column in a format, which contains %s once
// and no other %. A row with NULL in the column has no key. The rules of TextColumn apply.
//
//	canal.Text("category", "category:%s") // the group "category:books" of BindGroup
//
// For a text of several columns, and of an integer whose text is not certain, make a Mapping of
// your own.
func Text(column, format string) Mapping[string] {
	m := TextColumn[string](column)
	before, after, ok := strings.Cut(format, "%s")
	switch {
	case column == "":
		m.err = errors.New("Text: the column is empty")
	case !ok || strings.Contains(before+after, "%"):
		m.err = fmt.Errorf("Text: the format %q of the column %s: it must contain %%s once, and no other %%", format,
			column)
	}
	m.example = before + "x" + after
	m.Key = TextOf(column, func(value string) string { return before + value + after }).Key
	return m
}
