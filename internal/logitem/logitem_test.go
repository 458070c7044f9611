package logitem

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
)

func item(text string) Item {
	return Item{Key: cacheaside.Key{Loader: "user", Version: "1", Text: text}}
}

func TestRoundTrip(t *testing.T) {
	var many []Item
	for n := range 5000 {
		many = append(many, item(fmt.Sprint("user-", n, strings.Repeat("x", n%100))))
	}
	for name, items := range map[string][]Item{
		"one":       {item("17")},
		"flags":     {{Key: cacheaside.Key{Loader: "user", All: true}}, {Key: cacheaside.Key{Loader: "user", Text: "team:7", Group: true}}, {Key: cacheaside.Key{Loader: "a.b-c", Version: "v2"}, Inserting: true}},
		"any bytes": {item("\x00\xff'\\"), item("")},
		"longest":   {item(strings.Repeat("x", maxText)), item(strings.Repeat("y", maxText)), {Key: cacheaside.Key{Loader: strings.Repeat("l", maxName), Version: strings.Repeat("v", maxName), Text: strings.Repeat("z", maxText)}}},
		"many":      many,
	} {
		var got []Item
		for _, m := range Encode(items) {
			if len(m) > MaxMessage {
				t.Errorf("%s: %d bytes", name, len(m))
			}
			some, err := Decode(m)
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, some...)
		}
		if !slices.Equal(got, items) {
			t.Errorf("%s: %d items, not %d, or others", name, len(got), len(items))
		}
	}
	if len(Encode(nil)) != 0 || len(Encode(many)) < 2 {
		t.Error(len(Encode(nil)), len(Encode(many)))
	}
}

// A message that was cut at any byte is no message with fewer items.
func TestCut(t *testing.T) {
	m := Encode([]Item{item("1"), item("22"), {Key: cacheaside.Key{Loader: "user", All: true}}})[0]
	for n := range m {
		if items, err := Decode(m[:n]); err == nil {
			t.Errorf("%d of %d bytes: %d items", n, len(m), len(items))
		}
	}
	if _, err := Decode(append(bytes.Clone(m), 0)); err == nil {
		t.Error("something after the items was ignored")
	}
}

// What is not from Encode is refused, and the error has nothing of it.
func TestGarbage(t *testing.T) {
	one := Encode([]Item{item("secret")})[0]
	edit := func(index int, b byte) []byte {
		m := bytes.Clone(one)
		m[index] = b
		return m
	}
	for name, m := range map[string][]byte{
		"empty":       {},
		"text":        []byte(`{"secret": 1}`),
		"version":     edit(0, 2),
		"no items":    edit(1, 0),
		"many items":  edit(1, 0x7f),
		"huge number": append([]byte{version1}, bytes.Repeat([]byte{0xff}, 12)...),
		"most items":  append([]byte{version1}, append(bytes.Repeat([]byte{0xff}, 8), 0x7f)...),
		"flags":       edit(2, 8),
		"all, group":  edit(2, allFlag|groupFlag),
		"no group":    {version1, 1, groupFlag, 1, 'u', 0, 0},
		"length":      edit(3, 0x7f),
		"loader":      edit(4, ' '),
		"no loader":   {version1, 1, 0, 0, 0, 0},
	} {
		if items, err := Decode(m); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", name, items, err)
		}
	}
}

// An item of all keys of a loader is one item for any text, so that a message cannot ask for
// thousands of them.
func TestAll(t *testing.T) {
	want := Item{Key: cacheaside.Key{Loader: "user", All: true}}
	for n, from := range []Item{
		{Key: cacheaside.Key{Loader: "user", All: true, Text: "1"}},
		{Key: cacheaside.Key{Loader: "user", All: true, Version: "v"}},
		{Key: cacheaside.Key{Loader: "user", All: true}, Inserting: true},
	} {
		if got, err := Decode(Encode([]Item{from})[0]); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%d: %v, %v", n, got, err)
		}
	}
}

// An item of a group is one item for any version. A release without groups refuses the message, and
// so invalidates nothing by the name of the group.
func TestGroup(t *testing.T) {
	want := Item{Key: cacheaside.Key{Loader: "user", Text: "team:7", Group: true}}
	for n, from := range []Item{want, {Key: cacheaside.Key{Loader: "user", Version: "v", Text: "team:7", Group: true}},
		{Key: want.Key, Inserting: true}} {
		m := Encode([]Item{from})[0]
		if got, err := Decode(m); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%d: %v, %v", n, got, err)
		}
		if m[2] <= allFlag|admitFlag {
			t.Errorf("%d: an older release reads flags %d", n, m[2])
		}
	}
}

func TestCheck(t *testing.T) {
	for _, key := range []cacheaside.Key{{}, {Loader: "a b"}, {Loader: strings.Repeat("l", maxName+1)},
		{Loader: "user", Version: strings.Repeat("v", maxName+1)}, {Loader: "user", Text: strings.Repeat("secret", maxText/6+1)}} {
		if err := Check(key); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %.200v", key, err)
		}
	}
}

// Decode reads any message within the message's own size in memory, and Encode writes each accepted
// item back to the same message.
func FuzzDecode(f *testing.F) {
	f.Add(Encode([]Item{item("17"), {Key: cacheaside.Key{Loader: "user", All: true}, Inserting: true},
		{Key: cacheaside.Key{Loader: "user", Text: "team:7", Group: true}}})[0])
	f.Add([]byte{version1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		items, err := Decode(m)
		if err != nil {
			return
		}
		var again []Item
		for _, m := range Encode(items) {
			some, err := Decode(m)
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, some...)
		}
		if !slices.Equal(again, items) {
			t.Errorf("%v is not %v", again, items)
		}
	})
}
