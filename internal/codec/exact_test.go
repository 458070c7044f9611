package codec_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
)

type onlyTime struct{ time.Time }

// fragile has what JSON changes of some values.
type fragile struct {
	Born   time.Time
	At     *time.Time `json:",omitempty"`
	Times  map[string][]time.Time
	Days   map[time.Time]int
	Next   *fragile
	Name   string
	Names  map[string]string
	N      json.Number
	O      json.Number `json:",omitempty"`
	Null   onlyTime
	Hidden time.Time `json:"-"`
	Any    any
}

// Values that JSON changes in part are refused, with the path of that part. All others survive a
// round trip.
func TestValuesThatJSONChanges(t *testing.T) {
	lmt := time.Date(1880, 1, 2, 3, 4, 5, 6, time.FixedZone("LMT", -(4*3600+56*60+2)))
	east := time.Date(1880, 1, 2, 3, 4, 5, 6, time.FixedZone("LMT", 53*60+28))
	minutes := time.Date(1880, 1, 2, 3, 4, 5, 6, time.FixedZone("", -(4*3600+56*60)))
	const bad = "a\xffb"
	ok := fragile{N: "1"}
	with := func(change func(*fragile)) *fragile {
		v := ok
		change(&v)
		return &v
	}
	for name, c := range map[string]struct {
		v    *fragile
		want string // "" is carried
	}{
		"zero":             {&ok, ""},
		"nil":              {nil, ""},
		"whole minutes":    {with(func(v *fragile) { v.Born = minutes }), ""},
		"a rune":           {with(func(v *fragile) { v.Name = "\ufffd" }), ""},
		"its text":         {with(func(v *fragile) { v.Name = `\ufffd and \\ufffd <>&` + "\u2028" }), ""},
		"left out":         {with(func(v *fragile) { v.Hidden = lmt }), ""},
		"now":              {with(func(v *fragile) { v.Born = time.Now() }), ""},
		"time":             {with(func(v *fragile) { v.Born = lmt }), "fragile.Born: the offset of its zone has seconds"},
		"time in the east": {with(func(v *fragile) { v.Born = east }), "fragile.Born: the offset"},
		"pointer":          {with(func(v *fragile) { v.At = &lmt }), "fragile.At: "},
		"map":              {with(func(v *fragile) { v.Times = map[string][]time.Time{"a": {minutes, lmt}} }), "fragile.Times[][]: "},
		"key":              {with(func(v *fragile) { v.Days = map[time.Time]int{lmt: 1} }), "fragile.Days[]: "},
		"nested":           {with(func(v *fragile) { v.Next = with(func(v *fragile) { v.Born = lmt }) }), "fragile.Next.Born: "},
		"embedded":         {with(func(v *fragile) { v.Null.Time = lmt }), "fragile.Null.Time: "},
		"text":             {with(func(v *fragile) { v.Name = bad }), "fragile: a string in it is not UTF-8"},
		"text of a map":    {with(func(v *fragile) { v.Names = map[string]string{"a": bad} }), "not UTF-8"},
		"key of a map":     {with(func(v *fragile) { v.Names = map[string]string{bad: "a"} }), "not UTF-8"},
		"text in an any":   {with(func(v *fragile) { v.Any = []any{bad} }), "not UTF-8"},
		"both":             {with(func(v *fragile) { v.Name = `\ufffd` + bad }), "not UTF-8"},
		"cut rune":         {with(func(v *fragile) { v.Name = "ö"[:1] }), "not UTF-8"},
		"no number":        {with(func(v *fragile) { v.N = "" }), "fragile.N: an empty json.Number comes back as 0"},
	} {
		check := func(step string, err error) {
			t.Helper()
			changed, refused := errors.AsType[codec.NotCarried](err)
			if refused != (c.want != "") || !strings.Contains(string(changed), c.want) || !refused && err != nil {
				t.Errorf("%s, %s: %v, want %q", name, step, err, c.want)
			}
		}
		plain := must[*fragile](t, codec.JSON)
		p, err := plain.Encode(c.v)
		check("JSON", err)
		if back, decodeErr := plain.Decode(p); err == nil && (decodeErr != nil || !alike(*back, c.v)) {
			t.Errorf("%s comes back as %+v, %v", name, *back, decodeErr)
		}
		if c.v != nil {
			_, err := codec.Builtin(codec.JSON).Encode(c.v)
			check("as a wrapper calls it", err)
		}
		if _, err := plain.Lossy().Encode(c.v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// alike compares except for what a time loses: its location's name, and its monotonic clock.
func alike(a, b *fragile) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	if !x.Born.Equal(y.Born) || x.Born.Format(time.RFC3339Nano) != y.Born.Format(time.RFC3339Nano) {
		return false
	}
	x.Born, y.Born, x.Hidden, y.Hidden = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return reflect.DeepEqual(x, y)
}

// A string that is quoted twice, by its tag, hides from JSON what was replaced.
func TestTextsQuotedTwice(t *testing.T) {
	type quoted struct {
		A string  `json:",string"`
		B *string `json:",string"`
	}
	c, bad := must[quoted](t, codec.JSON), "\xff"
	v := quoted{B: &bad}
	if _, err := c.Encode(v); err == nil {
		t.Error("it is taken")
	}
	v.A, v.B = bad, nil
	if _, err := c.Encode(v); err == nil {
		t.Error("it is taken")
	}
	v.A = "good"
	if _, err := c.Encode(v); err != nil {
		t.Error(err)
	}
}
