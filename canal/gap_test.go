package canal

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestGapWhileMaintained: Maintain builds a filter for the first time while OnGap is to rebuild it.
// OnGap waits for that, says so, and then rebuilds the filter: the row that was inserted since the
// other rebuild has begun is found.
func TestGapWhileMaintained(t *testing.T) {
	in(t, func(x *world) {
		f, err := bloom.NewRedis(x.rdb, "users", 1000, 0.001, nil)
		x.check(err)
		defer f.Close()
		log := &testenv.Log{}
		x.checkpoint.at = ""
		x.options.Logger = slog.New(slog.NewTextHandler(log, nil))
		x.bindings = append(x.bindings, BindFilter("users", f, "shop", "users", TextColumn[string]("id")))
		calls := 0
		x.options.OnGap = func(ctx context.Context) error {
			calls++
			_, err := f.Rebuild(ctx, bloom.Keys("1", "2"), &bloom.RebuildOptions{AllowFewer: true, Settle: -1})
			return err
		}
		ctx, cancel := context.WithCancel(x.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Maintain(ctx, bloom.Keys("1"), nil) }() // which waits for 10 s
		time.Sleep(time.Second)
		began := time.Now()
		x.start()
		x.tell("5", event.Change{Schema: "shop", Table: "users", Kind: event.Insert, After: row(3, nil)})
		for x.Stats().Changes == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took > 12*time.Second || calls < 5 {
			t.Errorf("it took %v, and %d calls of OnGap", took, calls)
		}
		may, err := f.MightContainMany(x.Context(), []string{"1", "2", "3", "4"})
		if err != nil || !may[0] || !may[1] || !may[2] || may[3] {
			t.Error(may, err)
		}
		if s := x.Stats(); s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		if n := strings.Count(log.String(), "waiting for another rebuild"); n != 1 {
			t.Errorf("logged %d times: %s", n, log.String())
		}
		cancel()
		<-ended
	})
}

// TestRowsHiddenByFilter: if no key can be made of a row that may be new, the filter of its loader
// may hide it, and OnGap is called. For other rows, and for loaders without a filter, the
// invalidation is enough.
func TestRowsHiddenByFilter(t *testing.T) {
	inexact := func(id string) event.Row {
		r, _ := event.NewRow(columns, []event.Value{event.Inexact(id), event.TextValue("x"), event.Null()})
		return r
	}
	for name, c := range map[string]struct {
		change event.Change
		gaps   int
	}{
		"insert":                      {insert(row(errUnknown, nil)), 1},
		"insert, inexact":             {insert(inexact("1")), 1},
		"snapshot":                    {event.Change{Schema: "shop", Table: "users", Kind: event.Read, After: inexact("1")}, 1},
		"insert without its row":      {event.Change{Schema: "shop", Table: "users", Kind: event.Insert}, 1},
		"update of the key":           {update(inexact("1"), inexact("2")), 1},
		"update without what was":     {update(row(errUnknown, nil), inexact("2")), 1},
		"update, unknown":             {update(inexact("1"), row(errUnknown, nil)), 1},
		"update of another column":    {update(inexact("1"), inexact("1")), 0},
		"update, the key left out":    {update(inexact("1"), row(errOmitted, nil)), 0},
		"delete":                      {remove(row(errUnknown, nil)), 0},
		"a row with a key":            {insert(row("1", nil)), 0},
		"an update that gives no key": {update(row("1", nil), row(nil, nil)), 0},
	} {
		for _, filtered := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				in(t, func(x *world) {
					options := &cacheaside.LoaderOptions{EarlyRefresh: -1}
					if filtered {
						options.Filter = &knows{}
					}
					l, err := cacheaside.NewLoader(x.cache, "texts",
						func(context.Context, string) (string, error) { return "", cacheaside.ErrNotFound }, options)
					x.check(err)
					x.bindings = []Binding{Bind(l, "shop", "users", TextColumn[string]("id"))}
					gaps := 0
					x.options.OnGap = func(context.Context) error { gaps++; return nil }
					x.start()
					x.tell("1", c.change)
					if want := c.gaps; filtered && gaps != want || !filtered && gaps != 0 {
						t.Errorf("with a filter: %v: %d calls of OnGap", filtered, gaps)
					}
					if s := x.Stats(); s.Position != "1" {
						t.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

// TestFailingGapIsLogged: also if it has not failed for long enough to be alerted.
func TestFailingGapIsLogged(t *testing.T) {
	in(t, func(x *world) {
		log := &testenv.Log{}
		x.checkpoint.at = ""
		x.options.Logger = slog.New(slog.NewTextHandler(log, nil))
		fails := 3
		x.options.OnGap = func(context.Context) error {
			if fails--; fails >= 0 {
				return context.DeadlineExceeded
			}
			return nil
		}
		x.start()
		x.tell("5", insert(row(7, nil)))
		time.Sleep(5 * time.Second)
		if n := strings.Count(log.String(), "Options.OnGap failed"); n != 1 || x.Stats().Alerts != 0 {
			t.Errorf("logged %d times: %s", n, log.String())
		}
	})
}
