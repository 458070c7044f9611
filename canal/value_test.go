package canal

import (
	"errors"
	"fmt"
	"log/slog"
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

// No value gets into a log or an error by chance.
func TestValuesArePrivate(t *testing.T) {
	const private = "private"
	v := TextValue(private)
	c := update(row(1, private), row(private, private))
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v, "c", c, "k", c.Kind)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%d", "%q", "%x"} {
		fmt.Fprintf(&b, format+format+format, v, c, c.After)
	}
	_, err := v.Int64()
	_, _, keyed := IntColumn[int8]("id").Of(c.After)
	fmt.Fprint(&b, err, keyed, c.Kind, Kind(77), []Value{v}, []Change{c})
	if s := b.String(); strings.Contains(s, private) {
		t.Error(s)
	}
}

func TestKeys(t *testing.T) {
	big := row(uint64(300), "X")
	if k, ok, err := IntColumn[uint16]("ID").Of(big); k != 300 || !ok || err != nil {
		t.Error(k, ok, err)
	}
	for name, of := range map[string]func() (any, bool, error){
		"too great for int8":  func() (any, bool, error) { k, ok, err := IntColumn[int8]("id").Of(big); return k, ok, err },
		"too great for uint8": func() (any, bool, error) { k, ok, err := IntColumn[uint8]("id").Of(big); return k, ok, err },
		"negative":            func() (any, bool, error) { k, ok, err := IntColumn[uint8]("id").Of(row(-1, nil)); return k, ok, err },
		"2^63 and more": func() (any, bool, error) {
			k, ok, err := IntColumn[int64]("id").Of(row(uint64(1<<63), nil))
			return k, ok, err
		},
		"a column that is not": func() (any, bool, error) { k, ok, err := TextColumn[string]("none").Of(big); return k, ok, err },
		"no number":            func() (any, bool, error) { k, ok, err := IntColumn[int]("email").Of(big); return k, ok, err },
	} {
		if k, ok, err := of(); ok || err == nil {
			t.Errorf("%s: %v", name, k)
		}
	}
	if k, ok, err := TextColumn[string]("EMAIL").Of(big); k != "X" || !ok || err != nil {
		t.Error(k, ok, err)
	}
	if _, ok, err := TextColumn[string]("email").Of(row(1, nil)); ok || err != nil {
		t.Error("NULL is a key", err)
	}
	if _, err := NewRow(columns, []Value{v1}); err == nil {
		t.Error("a row of 1 value")
	}
	if _, err := NewRow(nil, nil); err == nil {
		t.Error("a row without columns")
	}
}

var v1 = TextValue("1")
