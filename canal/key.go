package canal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Key tells which key of a loader, or of a filter, a row of a table stands for: IntColumn,
// TextColumn, or one of your own.
type Key[K any] struct {
	// Columns are the columns that Of needs. A Source is told of them (Need.Tables), and can say at
	// its start if its database does not have them in each change, as with
	// binlog_row_image=MINIMAL.
	Columns []string

	// Of makes the key of a row. ok is false if the row has no key, as where the e-mail address by
	// which it can be found is NULL. One goroutine at a time calls Of, for the row as it was and as
	// it is. An error, or a panic, says that the row cannot be understood: then the whole loader is
	// invalidated. So is it, without a call of Of, if the text of one of Columns is not certainly
	// the one that the client shows (event.Value.Exact): a key of it could differ from the one that
	// is cached.
	Of func(event.Row) (key K, ok bool, err error)

	number bool // Of reads a number, whose text does not matter
}

// errInexact is the reason why no key is made of a value.
var errInexact = errors.New("the client may show its value in another way than the source (FLOAT, DOUBLE, JSON, ZEROFILL, or a type that the source does not see)")

// exact returns an error if the text of a column that the key needs may not be the client's.
func (k *Key[K]) exact(r event.Row) error {
	if k.number {
		return nil
	}
	for _, column := range k.Columns {
		if v := r.Get(column); v.Known() && !v.Exact() {
			return fmt.Errorf("column %s: %w", column, errInexact)
		}
	}
	return nil
}

// of makes the key of a row.
func (k *Key[K]) of(r event.Row) (key K, ok bool, err error) {
	if err := k.exact(r); err != nil {
		return key, false, err
	}
	return k.Of(r)
}

// IntColumn is the key of a loader whose keys are what an integer column holds. NULL is no key.
func IntColumn[K ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64](column string) Key[K] {
	lower := strings.ToLower(column)
	signed := ^K(0) < 0
	return Key[K]{Columns: []string{column}, number: true, Of: func(r event.Row) (key K, ok bool, err error) {
		v := r.Get(lower)
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
			return 0, false, fmt.Errorf("column %s: a number too great for the loader's keys", column)
		}
		return key, true, nil
	}}
}

// TextColumn is the key of a loader whose keys are what a column holds, as text. NULL is no key.
// Use it for text, DECIMAL, dates and times; for numbers prefer IntColumn. Where the text is not
// certain (event.Value.Exact), each change of the row invalidates the whole loader.
//
// A column whose collation takes upper and lower case, or accents, for the same finds the row "foo"
// for the key "Foo", too. The row is then cached under both keys, and invalidated under one of
// them. Ask the loader for one spelling only, and make that spelling here.
func TextColumn[K ~string](column string) Key[K] {
	lower := strings.ToLower(column)
	return Key[K]{Columns: []string{column}, Of: func(r event.Row) (key K, ok bool, err error) {
		v := r.Get(lower)
		switch {
		case !v.Known():
			return "", false, fmt.Errorf("column %s: %w", column, event.ErrUnknownColumn)
		case v.IsNull():
			return "", false, nil
		}
		return K(v.Text()), true, nil
	}}
}
