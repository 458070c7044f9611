package envelope

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lines are the messages of a file.
func lines(t testing.TB, format string) [][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "same", format+".jsonl"))
	check(t, err)
	defer f.Close()
	var all [][]byte
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		all = append(all, slices.Clone(s.Bytes()))
	}
	check(t, s.Err())
	return all
}

// shown is a row with its values, in the order of its columns.
func shown(r event.Row) string {
	if !r.Exists() {
		return "none"
	}
	var all []string
	for _, name := range r.Columns().Names() {
		v := r.Get(name)
		switch {
		case !v.Known():
			all = append(all, name+"?")
		case v.IsNull():
			all = append(all, name+" NULL")
		default:
			all = append(all, name+"="+v.Text())
		}
	}
	return strings.Join(all, "|")
}

// told formats changes with their values.
func told(changes []event.Change) string {
	var all []string
	for _, c := range changes {
		s := fmt.Sprint(c.Kind, " ", c.Schema, ".", c.Table)
		if c.Unread != nil {
			s += " unread"
		}
		if c.Before.Exists() || c.After.Exists() {
			s += ": " + shown(c.Before) + " -> " + shown(c.After)
		}
		all = append(all, s)
	}
	return strings.Join(all, "\n")
}

// All formats decode the same statements to the same changes, except for the differences that
// testdata/same/README.md lists.
func TestSame(t *testing.T) {
	const (
		a = `id=18446744073709551615|name=Ü "x"|price=-1234.50|qty=-7|born=2026-11-22|at=2026-11-22 13:14:15.120|seen=2026-11-22 13:14:15.000001|kind=old|tags=a,c|flags=165|y=2026|doc={"a": [1, "x"]}|body=` + "\x00\xffA" + `|note NULL`
		b = `id=2|name=|price=0.07|qty=0|born=1969-12-31|at=1969-12-31 23:59:59.999|seen=2026-11-22 00:00:00.000000|kind=it's|tags=|flags=0|y=1970|doc={}|body=|note=text`
	)
	a2 := strings.NewReplacer("-1234.50", "10.00", "note NULL", "note=now").Replace(a)
	b2 := strings.Replace(b, "id=2", "id=3", 1)
	compact := func(s string) string { return strings.ReplaceAll(s, `{"a": [1, "x"]}`, `{"a":[1,"x"]}`) }
	moved := "update shop.item: " + b + " -> " + b2
	for format, f := range map[string]struct {
		decode Decoder
		differ func(string) string
		moved  string
	}{
		"canal":    {Canal, func(s string) string { return s }, moved},
		"maxwell":  {Maxwell, func(s string) string { return strings.ReplaceAll(compact(s), "\x00\xffA", "AP9B") }, moved},
		"debezium": {Debezium, compact, "delete shop.item: " + b + " -> none\ninsert shop.item: none -> " + b2},
	} {
		t.Run(format, func(t *testing.T) {
			var all []event.Change
			for _, line := range lines(t, format) {
				changes, err := f.decode(line)
				check(t, err)
				all = append(all, changes...)
			}
			want := f.differ(strings.Join([]string{"insert shop.item: none -> " + a, "insert shop.item: none -> " + b,
				"update shop.item: " + a + " -> " + a2, f.moved, "delete shop.item: " + a2 + " -> none"}, "\n"))
			if got := told(all); got != want {
				t.Errorf("got\n%q\nwant\n%q", got, want)
			}
			if first := all[0].Time; !first.Equal(time.Unix(1795353255, 0)) {
				t.Errorf("committed at %v", first)
			}
		})
	}
}
