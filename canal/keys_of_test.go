package canal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/shop"
)

func noUser(context.Context, int64) (string, error) { return "", cacheaside.ErrNotFound }

// KeysOf follows the rules of a Consumer.
func TestKeysOf(t *testing.T) {
	cache, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	users, err := cacheaside.NewLoader(cache, "user", noUser, nil)
	if err != nil {
		t.Fatal(err)
	}
	bindings := []Binding{Bind(users, "shop", "users", IntColumn[int64]("id"))}
	for _, c := range []struct {
		change event.Change
		keys   string // the texts; "*" for all keys, "!" behind one that filters must admit
		missed int
	}{
		{shop.Insert(shop.Row(1, "a")), "1!", 0},
		{shop.Update(shop.Row(1, "a"), shop.Row(1, "b")), "1", 0},
		{shop.Update(shop.Row(1, "a"), shop.Row(2, "b")), "1 2!", 0},
		{shop.Delete(shop.Row(1, "a")), "1", 0},
		{shop.Delete(shop.Row(shop.ErrUnknown, "a")), "*", 0},
		{shop.Insert(shop.Row(shop.ErrUnknown, "a")), "*", 1},
		{event.Change{Kind: event.Truncate}, "*", 0},
		{event.Change{Kind: event.Replace, Table: "USERS"}, "*", 1},
		{event.Change{Kind: event.Replace, Table: "orders"}, "", 0},
	} {
		keys, missed, err := KeysOf(bindings, c.change)
		var texts []string
		for _, k := range keys {
			switch {
			case k.All:
				texts = append(texts, "*")
			case k == k.Existing():
				texts = append(texts, k.Text)
			default:
				texts = append(texts, k.Text+"!")
			}
		}
		slices.Sort(texts)
		if got := strings.Join(texts, " "); err != nil || got != c.keys || len(missed) != c.missed {
			t.Errorf("%v: %q, missed %v, %v", c.change, got, missed, err)
		}
	}
	for _, b := range []Binding{{}, BindOutbox(""), Handle("h", "shop", "users",
		func(context.Context, event.Change) error { return nil })} {
		if _, _, err := KeysOf([]Binding{b}, event.Change{}); err == nil {
			t.Errorf("%+v makes keys", b.Table())
		}
	}
}

// A program that sees a change elsewhere than in the log invalidates the same keys as a Consumer.
func ExampleKeysOf() {
	cache, err := cacheaside.NewLocal(nil)
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	users, err := cacheaside.NewLoader(cache, "user", noUser, nil)
	if err != nil {
		panic(err)
	}
	row, err := event.NewRow(event.NewColumns("id"), []event.Value{event.TextValue("7")})
	if err != nil {
		panic(err)
	}
	keys, _, err := KeysOf([]Binding{Bind(users, "shop", "users", IntColumn[int64]("id"))},
		event.Change{Schema: "shop", Table: "users", Kind: event.Delete, Before: row})
	if err == nil {
		err = cache.InvalidateKeys(context.Background(), keys...)
	}
	fmt.Println(len(keys), err)
	// Output: 1 <nil>
}
