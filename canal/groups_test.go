package canal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
)

// grouped returns a loader of rows with groups.
func grouped[K comparable](x *world, c *cacheaside.Cache, filter cacheaside.Filter) *cacheaside.Loader[K, string] {
	l, err := cacheaside.NewLoader(c, "grouped", func(_ context.Context, key K) (string, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.rows[key], nil
	}, &cacheaside.LoaderOptions{EarlyRefresh: -1, Filter: filter,
		Groups: cacheaside.GroupsOf(func(key K, _ string) []string { return []string{fmt.Sprint("email:", key)} })})
	x.check(err)
	return l
}

// Both groups of a row that moves are invalidated, and no others. NULL is in no group.
func TestGroupsOfRows(t *testing.T) {
	in(t, func(x *world) {
		users := grouped[int64](x, x.cache, nil)
		b := BindGroup(users, "shop", "users", Text("email", "email:%s!"))
		for name, c := range map[string]struct {
			change event.Change
			want   []string // nil: the change is not understood
		}{
			"insert":                 {insert(row(1, "a@b")), []string{"email:a@b!"}},
			"delete":                 {remove(row(1, "a@b")), []string{"email:a@b!"}},
			"snapshot":               {event.Change{Schema: "shop", Table: "users", Kind: event.Read, After: row(1, "a@b")}, []string{"email:a@b!"}},
			"update of others":       {update(row(1, "a@b"), row(2, "a@b")), []string{"email:a@b!"}},
			"update, left out":       {update(row(1, "a@b"), row(2, errOmitted)), []string{"email:a@b!"}},
			"move":                   {update(row(1, "a@b"), row(1, "c@d")), []string{"email:a@b!", "email:c@d!"}},
			"move into the first":    {update(row(1, nil), row(1, "c@d")), []string{"email:c@d!"}},
			"move out of the last":   {update(row(1, "a@b"), row(1, nil)), []string{"email:a@b!"}},
			"NULL":                   {insert(row(1, nil)), []string{}},
			"empty":                  {insert(row(1, "")), []string{"email:!"}},
			"percent":                {insert(row(1, "%d%s")), []string{"email:%d%s!"}},
			"before is unknown":      {update(row(1, errOmitted), row(1, "c@d")), nil},
			"after is unknown":       {update(row(1, "a@b"), row(1, errUnknown)), nil},
			"insert without its row": {event.Change{Schema: "shop", Table: "users", Kind: event.Insert}, nil},
		} {
			w := newWork(0)
			if err := b.addWork(w, &c.change); (err != nil) != (c.want == nil) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := map[cacheaside.Key]bool{}
			for _, g := range c.want {
				want[users.GroupKey(g)] = false
			}
			if c.want != nil && !maps.Equal(w.keys, want) {
				t.Errorf("%s: %v, want %q", name, w.keys, c.want)
			}
		}
		nameless := BindGroup(users, "shop", "users",
			Mapping[string]{Key: func(event.Row) (string, bool, error) { return "", true, nil }})
		c := insert(row(1, nil))
		if err := nameless.addWork(newWork(0), &c); err == nil {
			t.Error("a group without a name")
		}
	})
}

// The groups of a kind are spelled as the loader does it, and a kind that it does not have is an
// error of NewConsumer.
func TestGroupsOfKinds(t *testing.T) {
	in(t, func(x *world) {
		byEmail := cacheaside.GroupKind{Name: "email", Normalize: strings.ToLower}
		users, err := cacheaside.NewLoader(x.cache, "kinds",
			func(context.Context, int64) (string, error) { return "", nil }, &cacheaside.LoaderOptions{
				GroupKinds: []cacheaside.GroupKind{byEmail},
				Groups: cacheaside.GroupsOf(func(_ int64, email string) []string {
					return []string{byEmail.Of(email)}
				}),
			})
		x.check(err)
		want := map[cacheaside.Key]bool{{Loader: "kinds", Text: "email:a@b", Group: true}: false}
		for _, key := range []Mapping[string]{TextOf("email", byEmail.Of), Text("email", "email:%s")} {
			b := BindGroup(users, "shop", "users", key)
			w, c := newWork(0), update(row(1, "A@b"), row(2, "a@B"))
			if err := b.addWork(w, &c); err != nil || b.check() != nil || !maps.Equal(w.keys, want) {
				t.Errorf("%v, %v, %v", err, b.check(), w.keys)
			}
		}
		for what, b := range map[string]Binding{
			"does not begin with": BindGroup(users, "shop", "users", Text("email", "mail:%s")),
			"column is empty":     BindGroup(users, "shop", "users", TextOf("", byEmail.Of)),
			"function is nil":     BindGroup(users, "shop", "users", TextOf("email", nil)),
			"a column":            BindGroup(users, "shop", "users", TextOf("email", byEmail.Of), ""),
		} {
			if err := b.check(); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
		}
		w, c := newWork(0), insert(row(1, "a@b"))
		other := BindGroup(users, "shop", "users", TextOf("email", strings.ToLower))
		if err := other.addWork(w, &c); err == nil || other.check() != nil {
			t.Errorf("an unknown kind: %v", err)
		}
	})
}

// An update that changes none of the named columns invalidates nothing. What is not known counts as
// changed.
func TestGroupsOfColumns(t *testing.T) {
	in(t, func(x *world) {
		users := grouped[int64](x, x.cache, nil)
		group := Mapping[string]{Key: func(event.Row) (string, bool, error) { return "all", true, nil }}
		for name, c := range map[string]struct {
			columns []string
			change  event.Change
			want    bool
		}{
			"no columns":          {nil, update(row(1, "a@b"), row(1, "a@b")), true},
			"others":              {[]string{"id"}, update(row(1, "a@b"), row(1, "c@d")), false},
			"one of them":         {[]string{"id", "email"}, update(row(1, "a@b"), row(1, "c@d")), true},
			"in another case":     {[]string{"Email"}, update(row(1, "a@b"), row(1, "c@d")), true},
			"NULL":                {[]string{"email"}, update(row(1, nil), row(1, nil)), false},
			"from NULL":           {[]string{"email"}, update(row(1, nil), row(1, "")), true},
			"left out":            {[]string{"email"}, update(row(1, "a@b"), row(1, errOmitted)), false},
			"before is not known": {[]string{"email"}, update(row(1, errUnknown), row(1, "a@b")), true},
			"after is not known":  {[]string{"email"}, update(row(1, "a@b"), row(1, errUnknown)), true},
			"no such column":      {[]string{"name"}, update(row(1, "a@b"), row(1, "a@b")), true},
			"insert":              {[]string{"email"}, insert(row(1, "a@b")), true},
			"delete":              {[]string{"email"}, remove(row(1, "a@b")), true},
		} {
			b, w := BindGroup(users, "shop", "users", group, c.columns...), newWork(0)
			if err := b.addWork(w, &c.change); err != nil || (len(w.keys) > 0) != c.want {
				t.Errorf("%s: %v, %v", name, w.keys, err)
			}
			if !slices.Equal(b.columns, c.columns) {
				t.Errorf("%s: the source logs %q", name, b.columns)
			}
		}
		moves := BindGroup(users, "shop", "users", Text("email", "email:%s"), "id")
		w, c := newWork(0), update(row(1, "a@b"), row(1, "c@d"))
		if err := moves.addWork(w, &c); err != nil || len(w.keys) != 2 {
			t.Errorf("a move: %v, %v", w.keys, err)
		}
	})
}

// A change of the whole table, and a row whose group is not known, concern all groups. The filter
// of the loader misses nothing by that.
func TestGroupsOfWholeTables(t *testing.T) {
	for name, change := range map[string]event.Change{
		"truncate":    {Schema: "shop", Table: "users", Kind: event.Truncate},
		"alter":       {Schema: "shop", Table: "users", Kind: event.Alter},
		"not known":   insert(row(1, errUnknown)),
		"was unknown": update(row(1, errOmitted), row(1, "c@d")),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				l := grouped[int64](x, x.cache, &knows{})
				gaps := 0
				x.options.OnGap = func(context.Context) error { gaps++; return nil }
				x.bindings = []Binding{BindGroup(l, "shop", "users", Text("email", "%s"))}
				x.start()
				x.set(int64(1), "old")
				reads(x, l, 1, "old")
				x.set(int64(1), "new")
				x.tell("1", change)
				reads(x, l, 1, "new")
				if s := x.Stats(); gaps != 0 || s.Position != "1" {
					t.Errorf("%d calls of OnGap, %+v", gaps, s)
				}
			})
		})
	}
}

// The groups of changed rows, and of the items of an outbox, are invalidated in all processes, and
// no others.
func TestGroupsAreInvalidated(t *testing.T) {
	in(t, func(x *world) {
		own, other := grouped[string](x, x.cache, nil), grouped[string](x, x.caches[1], nil)
		x.bindings = []Binding{BindGroup(own, "shop", "users", Text("email", "email:%s")), BindOutbox("")}
		var err error
		x.Consumer, err = NewConsumer(x.cache, messenger{x.source}, x.checkpoint, x.bindings, &x.options)
		x.check(err)
		x.begin()
		write := func(v string) {
			for _, key := range []string{"a@b", "c@d", "e@f"} {
				x.set(key, v)
			}
		}
		read := func(a, c, e string) {
			t.Helper()
			for _, l := range []*cacheaside.Loader[string, string]{own, other} {
				for key, want := range map[string]string{"a@b": a, "c@d": c, "e@f": e} {
					reads(x, l, key, want)
				}
			}
		}
		write("old")
		read("old", "old", "old")
		write("new")
		x.tell("1", update(row(1, "a@b"), row(1, "c@d")))
		read("new", "new", "old")
		write("newest")
		x.hear("2", keysOnly(own.GroupKey("email:a@b"), own.GroupKey("email:e@f")))
		read("newest", "new", "newest")
		if s := x.Stats(); s.Misunderstood != 0 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A consumer invalidates groups of a loader that it never reads. A program whose loader has no
// Groups follows it.
func TestGroupsReachProgramsWithoutGroups(t *testing.T) {
	in(t, func(x *world) {
		own := grouped[string](x, x.cache, nil)
		other, err := cacheaside.NewLoader(x.caches[1], "grouped", func(_ context.Context, key string) (string, error) {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.rows[key], nil
		}, &cacheaside.LoaderOptions{EarlyRefresh: -1})
		x.check(err)
		x.bindings = []Binding{BindGroup(own, "shop", "users", Text("email", "email:%s"))}
		x.start()
		x.set("a@b", "old")
		reads(x, other, "a@b", "old")
		x.set("a@b", "new")
		x.tell("1", update(row(1, "a@b"), row(1, "c@d")))
		reads(x, other, "a@b", "new")
	})
}
