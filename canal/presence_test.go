package canal

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A table that the Source does not find is alerted, and reported until a change of it comes.
func TestMissingTable(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = append(x.bindings, Bind(x.users, "shop", "Users", IntColumn[int64]("id")),
			Bind(x.users, "shop", "later", IntColumn[int64]("id")))
		x.source.in <- event.Batch{Position: "1", Time: time.Now(),
			Missing: map[event.Table]string{{Schema: "shop", Name: "Users"}: "private reason",
				{Schema: "shop", Name: "later"}: "none"}}
		x.start()
		if got := x.alerted(); !slices.Equal(got, []string{"missing table loader user"}) { // two of a second are one
			t.Errorf("alerted %q", got)
		}
		const users, later = "loader user of shop.Users: private reason", "loader user of shop.later: none"
		if s := x.Stats(); !slices.Equal(s.MissingTables, []string{users, later}) || len(s.NoChanges) != 4 {
			t.Errorf("%q, %q", s.MissingTables, s.NoChanges)
		}
		if err := x.Health(time.Hour); err == nil || err.Error() != "canal: no such table: "+users {
			t.Error(err)
		}
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.tell("2", event.Change{Schema: "shop", Table: "Users", Kind: event.Alter})
		reads(x, x.users, 1, "new")
		x.set(int64(1), "newer")
		x.tell("3", event.Change{Schema: "shop", Table: "later", Kind: event.Insert, After: row(1, nil)},
			update(row(1, nil), row(1, nil)))
		reads(x, x.users, 1, "newer")
		if s := x.Stats(); len(s.MissingTables) > 0 || len(s.NoChanges) > 0 {
			t.Errorf("%q, %q", s.MissingTables, s.NoChanges)
		}
		if err := x.Health(time.Hour); err != nil {
			t.Error(err)
		}
	})
}

// When no Source can check whether tables exist, a change of a table with nearly the same name
// shows that a table is missing. Otherwise the tables without any change are named.
func TestTableOfWhichNoChangeComes(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = []Binding{Bind(x.users, "Shop", "users", IntColumn[int64]("id")),
			Bind(x.byEmail, "shop", "people", TextColumn[string]("email")), Handle("h", "shop", "orders",
				func(context.Context, event.Change) error { return nil })}
		x.start()
		x.tell("1", update(row(1, nil), row(1, nil)),
			event.Change{Schema: "shop", Table: "orders", Kind: event.Truncate}, event.Change{Kind: event.Replace})
		s := x.Stats()
		if len(s.MissingTables) != 1 ||
			!strings.HasPrefix(s.MissingTables[0], "loader user of Shop.users: changes arrive of shop.users") {
			t.Errorf("%q", s.MissingTables)
		}
		if !slices.Equal(s.NoChanges, []string{"loader user of Shop.users", "loader user-by-email of shop.people"}) {
			t.Errorf("%q", s.NoChanges)
		}
		if err := x.Health(time.Hour); err == nil || !strings.Contains(err.Error(), "Shop.users") {
			t.Error(err)
		}
		x.tell("2", event.Change{Schema: "Shop", Table: "users", Kind: event.Insert, After: row(1, nil)},
			update(row(1, nil), row(1, nil)))
		if s := x.Stats(); len(s.MissingTables) != 0 {
			t.Errorf("both tables are there: %q", s.MissingTables)
		}
		alerts := x.alerted()
		if !slices.Contains(alerts, "missing table loader user") || len(alerts) != 1 {
			t.Errorf("alerted %q", alerts)
		}
	})
}

// What was missing in a former run is not in the next that finds it.
func TestMissingTableIsThereInTheNextRun(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.source.in <- event.Batch{Missing: map[event.Table]string{{Schema: "shop", Name: "users"}: "none"}}
		if got := x.alerted(); len(got) != 2 {
			t.Errorf("alerted %q", got)
		}
		x.source.in <- errUnknown
		time.Sleep(time.Minute)
		if s := x.Stats(); len(s.MissingTables) > 0 {
			t.Errorf("%q", s.MissingTables)
		}
	})
}
