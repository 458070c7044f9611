package parking

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// again is p as it is read again.
func again(t testing.TB, p Parked) (q Parked, text []byte) {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &q); err != nil {
		t.Fatal(err)
	}
	return q, b
}

// What is parked is read as it was, with texts for values.
func TestParkedIsReadAgain(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("x", 3600))
	empty, err := event.NewRow(event.NewColumns(), nil)
	if err != nil {
		t.Fatal(err)
	}
	change := update(row(1, nil), row(errUnknown, "a\xff<\x00é😀"))
	change.Time = at
	for _, p := range []Parked{
		{}, {Binding: "handler search", Change: change, Reason: "never", Time: at}, {Message: []byte("{"), Reason: "no JSON", Time: at}, {Message: []byte{}}, {Message: []byte{0xff}}, {Cut: true},
		{Change: remove(row(2, ""))}, {Change: event.Change{Schema: "shop", Kind: event.Truncate}}, {Change: event.Change{Kind: 77, After: row(errUnknown, errUnknown)}}, {Change: insert(empty)},
	} {
		q, text := again(t, p)
		if r, second := again(t, q); !bytes.Equal(text, second) || !reflect.DeepEqual(q, r) {
			t.Errorf("%s\nis %s", text, second)
		}
		if q.Binding != p.Binding || q.Reason != p.Reason || !q.Time.Equal(p.Time) ||
			!q.Change.Time.Equal(p.Change.Time) || q.Change.String() != p.Change.String() || q.Cut != p.Cut ||
			(q.Message == nil) != (p.Message == nil) || !bytes.Equal(q.Message, p.Message) {
			t.Errorf("%+v is %+v", p, q)
		}
		for _, rows := range [][2]event.Row{{p.Change.Before, q.Change.Before}, {p.Change.After, q.Change.After}} {
			if rows[0].Exists() != rows[1].Exists() {
				t.Errorf("%s: a row is there, or none", text)
			}
			for _, name := range rows[0].Columns().Names() {
				if v, w := rows[0].Get(name), rows[1].Get(name); v.Known() != w.Known() || v.Known() && !v.Equal(w) {
					t.Errorf("%s: %s", text, name)
				}
			}
		}
	}
}

// A time that RFC 3339 cannot say keeps nothing from being parked.
func TestParkedAtAnyTime(t *testing.T) {
	c := insert(row(1, nil))
	c.Time = time.Unix(1<<40, 0)
	if q, text := again(t, Parked{Change: c, Time: time.Unix(-1<<40, 0)}); !q.Time.IsZero() || !q.Change.Time.IsZero() {
		t.Errorf("%s", text)
	}
}

// wide is a row of n columns that hold the same.
func wide(n int, name, value string) event.Row {
	names, values := make([]string, n), make([]event.Value, n)
	for i := range names {
		names[i], values[i] = fmt.Sprintf("c%04d%s", i, name), event.TextValue(value)
	}
	r, err := event.NewRow(event.NewColumns(names...), values)
	if err != nil {
		panic(err)
	}
	return r
}

// A value that is too long is cut, and marked as cut. Short values of the same record stay whole,
// and no reader can take a part of a text for all of it.
func TestParkedIsCut(t *testing.T) {
	long := strings.Repeat("é", 30<<20)
	for name, c := range map[string]struct {
		p    Parked
		rows bool // short values are there
	}{
		"a text of 60 MB":    {Parked{Change: update(row(1, "short"), row(1, long))}, true},
		"bytes":              {Parked{Change: insert(row(1, strings.Repeat("\xff", 1<<20)))}, true},
		"what grows as JSON": {Parked{Change: insert(row(1, strings.Repeat("\x00", MaxSize/2)))}, true},
		"both rows":          {Parked{Change: update(row(1, long), row(1, long))}, true},
		"many columns":       {Parked{Change: update(wide(4000, "", strings.Repeat("x", 100)), row(1, nil))}, true},
		"too many columns":   {Parked{Change: update(wide(4000, strings.Repeat("x", 60), "1"), row(1, nil))}, false},
		"a message":          {Parked{Message: []byte(long)}, false},
		"a reason":           {Parked{Reason: long, Change: insert(row(1, nil))}, true},
	} {
		t.Run(name, func(t *testing.T) {
			q, text := again(t, c.p)
			if len(text) > MaxSize || !q.Cut {
				t.Errorf("%d bytes, cut %v", len(text), q.Cut)
			}
			if got := q.Change.After.Get("id").Text() == "1" &&
				q.Change.After.Get("note").Text() == "private"; got != c.rows {
				t.Errorf("short values: %v", got)
			}
			if v := q.Change.After.Get("email"); v.Known() && !v.IsNull() {
				t.Error("half a text is taken for the whole")
			}
			if q.Change.Before.Exists() != c.p.Change.Before.Exists() ||
				q.Change.After.Exists() != c.p.Change.After.Exists() {
				t.Error("a row is there, or none")
			}
			if c.p.Message != nil && (!bytes.HasPrefix(c.p.Message, q.Message) || len(q.Message) < MaxSize/8) {
				t.Errorf("%d bytes of the message", len(q.Message))
			}
			if strings.Contains(string(text), `base64`) && name != "bytes" {
				t.Error("it is cut within a character")
			}
		})
	}
}

func TestUnmarshalParkedChecks(t *testing.T) {
	for text, want := range map[string]string{
		`{"time":"secret"}`:                         `canal: parked: "time" or "committed" is not a time`,
		`{"committed":"secret"}`:                    `canal: parked: "time" or "committed" is not a time`,
		`{"kind":"secret"}`:                         `canal: parked: "kind" is unknown`,
		`{"before":{"a":12345}}`:                    `canal: parked: "before", column "a": neither text nor base64`,
		`{"after":{"a":{"base64":"secret!"}}}`:      `canal: parked: "after", column "a": neither text nor base64`,
		`{"after":{"a":{"text":"x","base64":""}}}`:  `canal: parked: "after", column "a": neither text nor base64`,
		`{"after":{"a":{"text":"x","length":-1}}}`:  `canal: parked: "after", column "a": neither text nor base64`,
		`{"message":["secret"]}`:                    `canal: parked: "message" is neither text nor base64`,
		`{"reason":12345}`:                          `canal: parked: "reason", at byte 15, has the wrong type`,
		`{"before":"secret"}`:                       `canal: parked: "before", at byte 18, has the wrong type`,
		`[]`:                                        `canal: parked: "", at byte 1, has the wrong type`,
		`{secret`:                                   `canal: parked: not JSON, at byte 2`,
		``:                                          `canal: parked: not JSON, at byte 0`,
		strings.Repeat(`{"a":`, 1<<20):              `canal: parked: not JSON, at byte 50001`,
		`{"after":{"a":` + strings.Repeat("[", 1e6): `canal: parked: not JSON, at byte 10013`,
	} {
		var p Parked
		if err := p.UnmarshalJSON([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}

// A file with any contents is read to its end, and nothing is left out silently.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parked")
	f := NewFile(path)
	for range f.Read() {
		t.Error("there is no file")
	}
	for range 2 {
		if err := f.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	park := func(reason string) {
		t.Helper()
		if err := f.Park(t.Context(), Parked{Reason: reason}); err != nil {
			t.Fatal(err)
		}
	}
	write := func(s string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	park("one")
	write(`{"reason":"secr`) // a crash
	park("two")
	write(strings.Repeat("x", 3*maxLine) + "\n\n" + `{"reason":"` + strings.Repeat("y", maxLine) + "\"}\n")
	park("three")
	write(`{"reason":"secr`)
	got := read(f.Read())
	want := []string{"one", "canal: parked: line 2: not JSON, at byte 15", "two",
		"canal: parked: line 4: longer than 1048576 bytes", "canal: parked: line 6: longer than 1048576 bytes", "three",
		"canal: parked: line 8: cut off, for example by a crash: not JSON, at byte 15"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	for range f.Read() {
		break // end the loop early
	}
	got = read(Read(io.MultiReader(strings.NewReader(`{"reason":"x"}`+"\n"+`{"reas`),
		iotest.ErrReader(errors.New("bad disk")))))
	if want := []string{"x", "canal: parked: line 2: bad disk"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if got := read(Read(strings.NewReader(`{"reason":"whole"}`))); !reflect.DeepEqual(got, []string{"whole"}) {
		t.Errorf("%q", got)
	}
	gone := NewFile(filepath.Join(path, "gone"))
	if gone.Check(t.Context()) == nil || len(read(gone.Read())) != 1 {
		t.Error("the folder is a file")
	}
}

func read(all func(func(Parked, error) bool)) (got []string) {
	for p, err := range all {
		if err != nil {
			got = append(got, err.Error())
		} else {
			got = append(got, p.Reason)
		}
	}
	return got
}

// Any record that is read can be written and read again, with the same result.
func FuzzParked(f *testing.F) {
	for _, p := range []Parked{{}, {Binding: "handler search", Change: update(row(1, nil), row(errUnknown, "a\xff")),
		Reason: "never", Time: time.Unix(1, 2)}, {Message: []byte{0xff}, Cut: true}} {
		b, err := p.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(
		`{"time":"0000-01-01T00:00:00+14:00","before":{"a":{"text":"x","length":7},"A":{"base64":"Yf8="},"":null},"message":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Parked
		if p.UnmarshalJSON(b) != nil {
			return
		}
		q, first := again(t, p)
		r, second := again(t, q)
		if _, third := again(t, r); !bytes.Equal(second, third) || !q.Cut && !bytes.Equal(first, second) {
			t.Errorf("%q is %q, %q, %q", b, first, second, third)
		}
		if len(first) > MaxSize && len(b) <= MaxSize/16 {
			t.Errorf("%d bytes are %d", len(b), len(first))
		}
	})
}
