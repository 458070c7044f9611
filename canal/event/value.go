package event

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"reflect"
	"strconv"
)

// ErrUnknownColumn is returned for a column whose value is unknown, because the database did not
// log it or because the column does not exist.
var ErrUnknownColumn = errors.New("canal: the column is not known")

// A Value is the value of a column: a value, NULL, or unknown if the database did not log it. The
// zero Value is unknown. Formatting a Value does not show its content, because rows are private;
// Text does.
type Value struct {
	v any // nil: unknown; omitted: unknown, and not in the row image
}

type null struct{}

type omitted struct{}

// inexact is a text that may differ from what the client shows.
type inexact string

// inexactText is inexact, and not a number.
type inexactText string

// Null returns SQL's NULL.
func Null() Value { return Value{null{}} }

// Omitted returns the Value of a column that is not in a row image, as with
// binlog_row_image=MINIMAL. It is unknown. In the After of an Update it means that the column has
// not changed, and a Binding takes the value from Before. For a column that is in the row image
// and cannot be read, use the zero Value instead.
func Omitted() Value { return Value{omitted{}} }

// ValueOf returns the Value of an integer, a float, a bool (1 or 0, as in MySQL), a string, or
// bytes, which it does not copy. It returns NULL for nil. For any other type it returns an error
// that names the type.
func ValueOf(v any) (Value, error) {
	switch v := v.(type) {
	case nil:
		return Null(), nil
	case string, []byte, int64, uint64, float64, float32, int32, uint32, int16, uint16, int8, uint8, int, uint:
		return Value{v}, nil
	case bool:
		if v {
			return Value{int64(1)}, nil
		}
		return Value{int64(0)}, nil
	default:
		return Value{}, fmt.Errorf("canal: a column cannot hold a %T", v)
	}
}

// TextValue returns the Value of a text.
func TextValue(s string) Value { return Value{s} }

// Inexact returns the Value of a text that may differ from what the client shows, such as a
// number that may be padded with zeros, or bytes in an unknown encoding. A Source uses it when it
// knows the value of a column, but not how the client formats it. See Value.Exact.
func Inexact(s string) Value { return Value{inexact(s)} }

// InexactText returns the Value of a text that may differ from what the client shows, and that is
// not a number, even if it has only digits, such as a bit string: Int64 and Uint64 return an error.
func InexactText(s string) Value { return Value{inexactText(s)} }

// Exact reports whether Text is certain to be the text that a client of the database shows. It
// returns false for FLOAT and DOUBLE, for values of Inexact and InexactText, and for unknown ones.
// A Binding makes no key of a value that is not exact, except with IntColumn, which compares
// numbers.
func (v Value) Exact() bool {
	_, marked := v.v.(inexact)
	return v.Known() && !marked && !v.noNumber()
}

// Known reports whether the value is known. NULL is a known value.
func (v Value) Known() bool { return v.v != nil && !v.omitted() }

func (v Value) omitted() bool { return v.v == omitted{} }

// IsNull reports whether the value is NULL.
func (v Value) IsNull() bool { return v.v == null{} }

// Text returns the value as MySQL's client shows it: integers in decimal, DECIMAL with all its
// digits, DATE and DATETIME as stored, TIMESTAMP in UTC, ENUM and SET as names, BIT and YEAR as
// numbers, and bytes unchanged. FLOAT and DOUBLE have the fewest digits that identify the number
// within their type, which may differ from what the client shows. So may the text of JSON.
// Neither can be a key (see Exact). NULL and unknown values return "". The Source is responsible
// for these formats.
func (v Value) Text() string {
	switch r := reflect.ValueOf(v.v); {
	case r.Kind() == reflect.String:
		return r.String()
	case r.CanInt():
		return strconv.FormatInt(r.Int(), 10)
	case r.CanUint():
		return strconv.FormatUint(r.Uint(), 10)
	case r.CanFloat():
		return strconv.FormatFloat(r.Float(), 'g', -1, r.Type().Bits())
	}
	b, _ := v.v.([]byte)
	return string(b)
}

// Int64 returns the value of an integer column, even if the Source delivers it as text. It
// returns an error for FLOAT and DOUBLE.
func (v Value) Int64() (int64, error) {
	switch r := reflect.ValueOf(v.v); {
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint() && r.Uint() <= math.MaxInt64:
		return int64(r.Uint()), nil
	}
	n, err := strconv.ParseInt(v.Text(), 10, 64)
	if err != nil || v.noNumber() {
		return 0, v.conversionError("a signed integer")
	}
	return n, nil
}

// Uint64 is like Int64, for unsigned integers.
func (v Value) Uint64() (uint64, error) {
	switch r := reflect.ValueOf(v.v); {
	case r.CanUint():
		return r.Uint(), nil
	case r.CanInt() && r.Int() >= 0:
		return uint64(r.Int()), nil
	}
	n, err := strconv.ParseUint(v.Text(), 10, 64)
	if err != nil || v.noNumber() {
		return 0, v.conversionError("an unsigned integer")
	}
	return n, nil
}

// noNumber reports whether the value is no integer, although its text can look like one.
func (v Value) noNumber() bool {
	_, text := v.v.(inexactText)
	return text || reflect.ValueOf(v.v).CanFloat()
}

// conversionError returns an error that does not show the value.
func (v Value) conversionError(want string) error {
	switch {
	case !v.Known():
		return ErrUnknownColumn
	case v.IsNull():
		return fmt.Errorf("canal: NULL is not %s", want)
	default:
		return fmt.Errorf("canal: a %T of %d characters is not %s", v.v, len(v.Text()), want)
	}
}

// Equal reports whether both values are NULL, or both are known and have the same text.
func (v Value) Equal(w Value) bool {
	return v.Known() && w.Known() && v.IsNull() == w.IsNull() && v.Text() == w.Text()
}

// String returns only whether the value is known, NULL or another value.
func (v Value) String() string {
	switch {
	case !v.Known():
		return "not known"
	case v.IsNull():
		return "NULL"
	default:
		return "a value"
	}
}

// Format writes String for every verb and flag, so that the value is never printed.
func (v Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, v.String()) }

// LogValue returns String.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }
