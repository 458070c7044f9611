package canal

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
)

// Value is what a column holds: a value, or NULL, or it is not known, since the database did not say. The zero Value is not known. As text it does not show itself, for rows are private: Text does.
type Value struct {
	v any // nil: not known
}

type null struct{}

// Null is SQL's NULL.
func Null() Value { return Value{null{}} }

// ValueOf makes a Value of an integer, a float, a bool (1 and 0, as MySQL has it), a string or bytes, which it does not copy. nil is NULL. Anything else is an error that names its type.
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

// Known tells whether the database has said what the column holds, be that NULL.
func (v Value) Known() bool { return v.v != nil }

// IsNull tells whether it is known to be NULL.
func (v Value) IsNull() bool { return v.v == null{} }

// Text is the value as MySQL's client shows it: integers in decimal, DECIMAL with its digits, DATE and DATETIME as they are stored, TIMESTAMP in UTC, ENUM and SET by their names, BIT and YEAR as a number, bytes as they are, and floats in the fewest digits that
// tell them from others of their type. NULL, and what is not known, is "".
func (v Value) Text() string {
	switch v := v.v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case int:
		return strconv.Itoa(v)
	case uint:
		return strconv.FormatUint(uint64(v), 10)
	case int32:
		return strconv.FormatInt(int64(v), 10)
	case uint32:
		return strconv.FormatUint(uint64(v), 10)
	case int16:
		return strconv.FormatInt(int64(v), 10)
	case uint16:
		return strconv.FormatUint(uint64(v), 10)
	case int8:
		return strconv.FormatInt(int64(v), 10)
	case uint8:
		return strconv.FormatUint(uint64(v), 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	}
	return ""
}

// Int64 is the value of an integer column, also where the source has it as text.
func (v Value) Int64() (int64, error) {
	switch n := v.v.(type) {
	case int64:
		return n, nil
	case int32:
		return int64(n), nil
	case int16:
		return int64(n), nil
	case int8:
		return int64(n), nil
	case uint32:
		return int64(n), nil
	}
	n, err := strconv.ParseInt(v.Text(), 10, 64)
	if err != nil {
		return 0, v.unfit("a signed integer")
	}
	return n, nil
}

// Uint64 is Int64 for an unsigned one.
func (v Value) Uint64() (uint64, error) {
	switch n := v.v.(type) {
	case uint64:
		return n, nil
	case uint32:
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(v.Text(), 10, 64)
	if err != nil {
		return 0, v.unfit("an unsigned integer")
	}
	return n, nil
}

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
