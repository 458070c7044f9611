package promises

import (
	"errors"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fault"
)

// byColor is a kind whose values compare like a case-insensitive column that ignores trailing
// spaces.
var byColor = cacheaside.GroupKind{Name: "color",
	Normalize: func(color string) string { return strings.ToLower(strings.TrimRight(color, " ")) }}

// byColors returns options with one group for each row, which follows from the row.
func byColors() *cacheaside.LoaderOptions {
	return &cacheaside.LoaderOptions{
		GroupKinds: []cacheaside.GroupKind{byColor, {Name: "size"}},
		Groups: cacheaside.GroupsOf(func(_ int, row string) []string {
			color, _, _ := strings.Cut(row, "/")
			return []string{"", "color:" + color} // applies to functions without Of too
		}),
	}
}

// All spellings of a value are one group: for the loader, for a writer with a Key, and for a
// literal Key in a process with the loader.
func TestSpellingsOfGroups(t *testing.T) {
	for what, invalidate := range map[string]func(p process) error{
		"the loader": func(p process) error { return p.InvalidateGroup(t.Context(), "color:RED ") },
		"a kind":     func(p process) error { return p.InvalidateGroup(t.Context(), byColor.Of("RED ")) },
		"a key":      func(p process) error { return p.cache.InvalidateKeys(t.Context(), p.GroupKey("color:RED")) },
		"a literal": func(p process) error {
			return p.cache.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "row", Text: "color:Red", Group: true})
		},
		"a normal key": func(p process) error { return p.cache.InvalidateKeys(t.Context(), p.GroupKey("color:red")) },
	} {
		t.Run(what, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "red/old", 2: "RED/old", 3: "red /old", 4: "blue/old"})
			p, q := start(t, b, d, noMemory, byColors()), start(t, b, d, noMemory, byColors())
			for key := range 4 {
				p.want(t, key+1, d.rows[key+1], nil)
			}
			for key, row := range map[int]string{1: "red/new", 2: "Red/new", 3: "red/new", 4: "blue/new"} {
				d.write(key, row)
			}
			if err := invalidate(p); err != nil {
				t.Fatal(err)
			}
			for key, want := range map[int]string{1: "red/new", 2: "Red/new", 3: "red/new", 4: "blue/old"} {
				p.want(t, key, want, nil)
				q.freshly(t, key, want)
			}
		})
	}
	if byColor.Of("Red ") != "color:red" || (cacheaside.GroupKind{Name: "size"}).Of("XL:") != "size:XL:" {
		t.Error("Of returns a wrong name of a group")
	}
}

// A name of an unknown kind is an error, but a literal Key with one is not: another program may
// know the kind, and a relay would repeat the error forever. Errors do not show the name.
func TestUnknownKindsOfGroups(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "red/old"})
	p := start(t, b, d, noMemory, byColors())
	for _, name := range []string{"colour:red", "red", "color", "Color:red", ":red"} {
		err := p.InvalidateGroup(t.Context(), name)
		if !errors.Is(err, fault.UnknownKind) || strings.Contains(err.Error(), name) && name != "color" {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.GroupKey(name).Check(); !errors.Is(err, fault.UnknownKind) {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.cache.InvalidateKeys(t.Context(),
			cacheaside.Key{Loader: "row", Text: name, Group: true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.InvalidateGroup(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "a group needs a name") {
		t.Error(err)
	}
	o := byColors()
	o.Groups = cacheaside.GroupsOf(func(int, string) []string { return []string{"colour:red"} })
	_, other := embedded(t)
	if _, err := start(t, other, d, noMemory, o).Get(t.Context(), 1); !errors.Is(err, fault.UnknownKind) ||
		!strings.Contains(err.Error(), "LoaderOptions.Groups") {
		t.Error(err)
	}
	o = byColors()
	o.GroupKinds = []cacheaside.GroupKind{{Name: "color", Normalize: func(string) string { panic("color") }}}
	_, other = embedded(t)
	q := start(t, other, d, noMemory, o)
	for what, err := range map[string]error{
		"InvalidateGroup": q.InvalidateGroup(t.Context(), "color:red"),
		"a literal":       q.cache.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "row", Text: "color:red", Group: true}),
		"a load":          func() error { _, err := q.Get(t.Context(), 1); return err }(),
	} {
		if _, ok := errors.AsType[*cacheaside.PanicError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestGroupKindsOptions(t *testing.T) {
	_, b := embedded(t)
	p := start(t, b, newTable(nil), noMemory, nil)
	of := cacheaside.GroupsOf(func(int, string) []string { return nil })
	for want, o := range map[string]*cacheaside.LoaderOptions{
		"GroupKinds without Groups":  {GroupKinds: []cacheaside.GroupKind{byColor}},
		`GroupKinds[0].Name ""`:      {Groups: of, GroupKinds: []cacheaside.GroupKind{{}}},
		`GroupKinds[0].Name "a:b"`:   {Groups: of, GroupKinds: []cacheaside.GroupKind{{Name: "a:b"}}},
		"another kind has this name": {Groups: of, GroupKinds: []cacheaside.GroupKind{byColor, {Name: "color"}}},
	} {
		if _, err := cacheaside.NewLoader(p.cache, "other", newTable(nil).load, o); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
