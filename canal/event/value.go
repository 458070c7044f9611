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

// ErrUnknownColumn says that the database has not told what a column holds, or that there is none
// of this name.
var ErrUnknownColumn = errors.New("canal: the column is not known")

// Value is what a column holds: a value, or NULL, or it is not known, since the database did not
// say. The zero Value is not known. As text it does not show itself, for rows are private: Text
// does.
type Value struct {
	v any // nil: not known; omitted: nor is it in the row image
}

type null struct{}

type omitted struct{}

// inexact is a text that the client may show in another way.
type inexact string

// Null is SQL's NULL.
func Null() Value { return Value{null{}} }

// Omitted is the Value of a column that a row image leaves out, as with binlog_row_image=MINIMAL.
// It is not known. In the After of an Update it says that the column has not changed, and a Binding
// takes it from Before. A column that the image has, and that cannot be read, is the zero Value
// instead.
func Omitted() Value { return Value{omitted{}} }

// ValueOf makes a Value of an integer, a float, a bool (1 and 0, as MySQL has it), a string or
// bytes, which it does not copy. nil is NULL. Anything else is an error that names its type.
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

// TextValue is ValueOf of a text.
func TextValue(s string) Value { return Value{s} }

// Inexact returns the Value of a text that the client may show in another way, such as a number
// that may be padded with zeros, or bytes in an encoding that is not known. A Source uses it where
// it knows what the column holds, but not how the client writes that. See Value.Exact.
func Inexact(s string) Value { return Value{inexact(s)} }

// Exact reports whether Text is certainly the text that a client of the database shows. It is false
// for FLOAT and DOUBLE, for values that a Source has marked so (Inexact), and for values that are
// not known. A Binding makes no key of a column whose value is not exact, except with IntColumn,
// which compares numbers.
func (v Value) Exact() bool {
	_, marked := v.v.(inexact)
	return v.Known() && !marked && !v.float()
}

// Known tells whether the database has said what the column holds, be that NULL.
func (v Value) Known() bool { return v.v != nil && !v.omitted() }

func (v Value) omitted() bool { return v.v == omitted{} }

// IsNull tells whether it is known to be NULL.
func (v Value) IsNull() bool { return v.v == null{} }

// Text is the value as MySQL's client shows it: integers in decimal, DECIMAL with its digits, DATE
// and DATETIME as they are stored, TIMESTAMP in UTC, ENUM and SET by their names, BIT and YEAR as a
// number, and bytes as they are. FLOAT and DOUBLE have the fewest digits that tell them from others
// of their type, which is not always how the client shows them, and neither is JSON: they are no
// keys (see Exact). NULL, and what is not known, is "". A Source sees to it.
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

// Int64 returns the value of an integer column, also where the source has it as text. A FLOAT or
// DOUBLE is an error.
func (v Value) Int64() (int64, error) {
	switch r := reflect.ValueOf(v.v); {
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint() && r.Uint() <= math.MaxInt64:
		return int64(r.Uint()), nil
	}
	n, err := strconv.ParseInt(v.Text(), 10, 64)
	if err != nil || v.float() {
		return 0, v.unfit("a signed integer")
	}
	return n, nil
}

// Uint64 is Int64 for an unsigned one.
func (v Value) Uint64() (uint64, error) {
	switch r := reflect.ValueOf(v.v); {
	case r.CanUint():
		return r.Uint(), nil
	case r.CanInt() && r.Int() >= 0:
		return uint64(r.Int()), nil
	}
	n, err := strconv.ParseUint(v.Text(), 10, 64)
	if err != nil || v.float() {
		return 0, v.unfit("an unsigned integer")
	}
	return n, nil
}

// float reports whether it is a FLOAT or DOUBLE.
func (v Value) float() bool { return reflect.ValueOf(v.v).CanFloat() }

// unfit is an error that does not show the value.
func (v Value) unfit(want string) error {
	switch {
	case !v.Known():
		return ErrUnknownColumn
	case v.IsNull():
		return fmt.Errorf("canal: NULL is not %s", want)
	default:
		return fmt.Errorf("canal: a %T of %d characters is not %s", v.v, len(v.Text()), want)
	}
}

// Equal tells whether both are known and have the same text, or are both NULL.
func (v Value) Equal(w Value) bool {
	return v.Known() && w.Known() && v.IsNull() == w.IsNull() && v.Text() == w.Text()
}

// String shows only whether there is a value.
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

// Format is String, whatever is asked for.
func (v Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, v.String()) }

// LogValue is String.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }
