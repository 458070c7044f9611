package event

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestValue(t *testing.T) {
	for _, c := range []struct {
		v    any
		text string
		i    bool // an Int64
		u    bool
	}{
		{int64(-5), "-5", true, false}, {uint64(math.MaxUint64), "18446744073709551615", false, true}, {int8(-1), "-1", true, false}, {uint8(255), "255", true, true},
		{int16(-1), "-1", true, false}, {uint16(9), "9", true, true}, {int32(7), "7", true, true}, {uint32(7), "7", true, true}, {3, "3", true, true}, {uint(3), "3", true, true},
		{"42", "42", true, true}, {[]byte("42"), "42", true, true}, {"4 2", "4 2", false, false}, {true, "1", true, true}, {false, "0", true, true},
		{float32(1.1), "1.1", false, false}, {1e20, "1e+20", false, false}, {nil, "", false, false},
	} {
		v, err := ValueOf(c.v)
		if err != nil || v.Text() != c.text || !v.Known() || v.IsNull() != (c.v == nil) {
			t.Errorf("%T: %q, %v", c.v, v.Text(), err)
		}
		if _, err := v.Int64(); (err == nil) != c.i {
			t.Errorf("%T %q is a signed integer: %v", c.v, c.text, err)
		}
		if _, err := v.Uint64(); (err == nil) != c.u {
			t.Errorf("%T %q is an unsigned integer: %v", c.v, c.text, err)
		}
		if !v.Equal(v) || v.Equal(Value{}) || v.Equal(TextValue("other")) {
			t.Errorf("%T: Equal", c.v)
		}
	}
	var none Value
	if _, err := none.Int64(); none.Known() || none.IsNull() || none.Equal(none) || !errors.Is(err, ErrUnknownColumn) {
		t.Errorf("%v", err)
	}
	if _, err := ValueOf(struct{}{}); err == nil || !strings.Contains(err.Error(), "struct {}") {
		t.Error(err)
	}
}

// PostgreSQL permits columns whose names differ in case only.
func TestColumnsThatDifferInCase(t *testing.T) {
	row, err := NewRow(NewColumns("ID", "id", "Name"),
		[]Value{TextValue("upper"), TextValue("lower"), TextValue("name")})
	if err != nil {
		t.Fatal(err)
	}
	for column, want := range map[string]string{"ID": "upper", "id": "lower", "name": "name", "NAME": "name",
		"Name": "name"} {
		if got := row.Get(column); !got.Known() || got.Text() != want {
			t.Errorf("%s: %v %q", column, got.Known(), got.Text())
		}
	}
	if row.Get("Id").Known() {
		t.Error("Id is one of two columns")
	}
	after, err := NewRow(row.columns, []Value{Omitted(), Omitted(), TextValue("new")})
	if err != nil {
		t.Fatal(err)
	}
	after = after.Over(row)
	if id, upper := after.Get("id").Text(), after.Get("ID").Text(); id != "lower" || upper != "upper" {
		t.Errorf("over the row before: id %q, ID %q", id, upper)
	}
}

// A Source without Bytes may deliver any number of messages, and the Consumer limits their size.
func TestSizeOfMessages(t *testing.T) {
	b := Batch{Messages: []Message{{Prefix: "p", Content: make([]byte, 1000)}, {Content: make([]byte, 500)}}}
	if n := b.Size(); n < 1500 || n > 3000 {
		t.Errorf("%d bytes", n)
	}
}
