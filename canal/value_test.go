package canal

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// No value gets into a log or an error by chance.
func TestValuesArePrivate(t *testing.T) {
	const private = "private"
	v := event.TextValue(private)
	c := update(row(1, private), row(private, private))
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v, "c", c, "k", c.Kind)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%d", "%q", "%x"} {
		fmt.Fprintf(&b, format+format+format, v, c, c.After)
	}
	_, err := v.Int64()
	_, _, keyed := IntColumn[int8]("id").Key(c.After)
	fmt.Fprint(&b, err, keyed, c.Kind, event.Kind(77), []event.Value{v}, []event.Change{c})
	if s := b.String(); strings.Contains(s, private) {
		t.Error(s)
	}
}

func TestKeys(t *testing.T) {
	big := row(uint64(300), "X")
	if k, ok, err := IntColumn[uint16]("ID").Key(big); k != 300 || !ok || err != nil {
		t.Error(k, ok, err)
	}
	for name, of := range map[string]func() (any, bool, error){
		"too great for int8":  func() (any, bool, error) { k, ok, err := IntColumn[int8]("id").Key(big); return k, ok, err },
		"too great for uint8": func() (any, bool, error) { k, ok, err := IntColumn[uint8]("id").Key(big); return k, ok, err },
		"negative":            func() (any, bool, error) { k, ok, err := IntColumn[uint8]("id").Key(row(-1, nil)); return k, ok, err },
		"2^63 and more": func() (any, bool, error) {
			k, ok, err := IntColumn[int64]("id").Key(row(uint64(1<<63), nil))
			return k, ok, err
		},
		"a column that is not": func() (any, bool, error) { k, ok, err := TextColumn[string]("none").Key(big); return k, ok, err },
		"no number":            func() (any, bool, error) { k, ok, err := IntColumn[int]("email").Key(big); return k, ok, err },
	} {
		if k, ok, err := of(); ok || err == nil {
			t.Errorf("%s: %v", name, k)
		}
	}
	if k, ok, err := TextColumn[string]("EMAIL").Key(big); k != "X" || !ok || err != nil {
		t.Error(k, ok, err)
	}
	if _, ok, err := TextColumn[string]("email").Key(row(1, nil)); ok || err != nil {
		t.Error("NULL is a key", err)
	}
	if _, err := event.NewRow(columns, []event.Value{v1}); err == nil {
		t.Error("a row of 1 value")
	}
	if _, err := event.NewRow(nil, nil); err == nil {
		t.Error("a row without columns")
	}
}

var v1 = event.TextValue("1")
