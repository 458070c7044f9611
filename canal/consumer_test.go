package canal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock"
)

// After the Consumer has received a change from any client, all processes read the new row, under
// its old key and its new one.
func TestChangesInvalidate(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		for id := range int64(4) {
			x.set(id, "old")
		}
		x.set("a@b", "1")
		for id := range int64(5) {
			_, _ = x.users.Get(x.Context(), id)
			_, _ = x.other.Get(x.Context(), id)
		}
		reads(x, x.byEmail, "a@b", "1")
		reads(x, x.byEmail, "c@d", "")
		x.set(int64(1), "new")
		x.set(int64(2), "")
		x.set(int64(4), "born")
		x.set("a@b", "")
		x.set("c@d", "1")
		x.tell("1", update(row(1, "a@b"), row(1, "c@d")), remove(row(2, nil)), insert(row(4, nil)))
		for _, l := range []*cacheaside.Loader[int64, string]{x.users, x.other} {
			for id, want := range []string{"old", "new", "", "old", "born"} {
				reads(x, l, int64(id), want)
			}
		}
		reads(x, x.byEmail, "a@b", "")
		reads(x, x.byEmail, "c@d", "1")
		if s := x.users.Stats(); s.Loads != 8 {
			t.Errorf("what was not changed was loaded, too: %d loads", s.Loads)
		}
		if s := x.Stats(); s.Changes != 3 || s.Batches != 2 || !s.Active || s.Misunderstood != 0 || s.Position != "1" {
			t.Errorf("%+v", s)
		}
	})
}

// With binlog_row_image=MINIMAL the image before a change has only the primary key, and the image
// after it has only the changed columns.
func TestMinimalImages(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = x.bindings[:1]
		x.start()
		x.set(int64(1), "old")
		x.set(int64(2), "old")
		reads(x, x.users, 1, "old")
		reads(x, x.users, 2, "old")
		reads(x, x.users, 3, "")
		x.set(int64(1), "new")
		x.set(int64(2), "")
		x.set(int64(3), "moved")
		x.tell("1", update(row(1, errOmitted), row(errOmitted, "x@y")), update(row(2, errOmitted), row(3, errOmitted)))
		reads(x, x.users, 1, "new")
		reads(x, x.users, 2, "")
		reads(x, x.users, 3, "moved")
		if s := x.Stats(); s.Misunderstood != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A key that cannot be read is not what it was before: it may be any.
func TestUnreadKeys(t *testing.T) {
	for name, before := range map[string]any{"NULL": nil, "ASCII": "a@b"} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				x.start()
				reads(x, x.byEmail, "c@d", "") // its absence is cached
				x.set("c@d", "1")
				x.tell("1", update(row(1, before), row(1, errUnknown)))
				reads(x, x.byEmail, "c@d", "1")
				if s := x.Stats(); s.Misunderstood != 1 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestKeysOfUnknownColumns: a Key that reads a column without asking whether it is known is not
// called if it is unknown. Its text would be "", and the real key would stay stale.
func TestKeysOfUnknownColumns(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = []Binding{Bind(x.byEmail, "shop", "users",
			Mapping[string]{Columns: []string{"EMAIL"}, Key: func(r event.Row) (string, bool, error) {
				return r.Get("email").Text(), true, nil
			}})}
		x.start()
		for n, c := range []event.Change{
			update(row(1, errOmitted), row(errOmitted, "c@d")), // MINIMAL, with the primary key in the row before
			update(row(1, errUnknown), row(1, "c@d")), remove(row(1, errOmitted)), insert(row(1, errUnknown)),
			remove(event.Row{}),
		} {
			x.set("a@b", "old")
			reads(x, x.byEmail, "a@b", "old")
			x.set("a@b", "new")
			x.tell("1", c)
			reads(x, x.byEmail, "a@b", "new")
			if s := x.Stats(); s.Misunderstood != int64(n+1) {
				t.Errorf("change %d: %+v", n, s)
			}
			x.tell("2", event.Change{Schema: "shop", Table: "users", Kind: event.Truncate})
		}
	})
	known := Mapping[string]{Columns: []string{"email"},
		Key: func(event.Row) (string, bool, error) { return "", true, nil }}
	if _, ok, err := known.keyOf(row(1, errUnknown)); ok || !errors.Is(err, event.ErrUnknownColumn) {
		t.Error(ok, err)
	}
	if _, ok, err := known.keyOf(row(errUnknown, nil)); !ok || err != nil {
		t.Error(ok, err)
	}
}

// Of what is done to a table as a whole, or cannot be understood, all keys of its loaders are
// invalidated; of other tables none.
func TestWholeTables(t *testing.T) {
	panics := Mapping[int64]{Key: func(event.Row) (int64, bool, error) { panic("private") }}
	for name, c := range map[string]struct {
		change event.Change
		raised bool
		key    Mapping[int64]
		not    int64 // understood
	}{
		"TRUNCATE":               {event.Change{Schema: "shop", Table: "users", Kind: event.Truncate}, true, IntColumn[int64]("id"), 0},
		"ALTER":                  {event.Change{Schema: "shop", Table: "users", Kind: event.Alter}, true, IntColumn[int64]("id"), 0},
		"DROP DATABASE":          {event.Change{Schema: "shop", Kind: event.Alter}, true, IntColumn[int64]("id"), 0},
		"what nobody understood": {event.Change{Kind: event.Alter}, true, IntColumn[int64]("id"), 0},
		"another table":          {event.Change{Schema: "shop", Table: "orders", Kind: event.Truncate}, false, IntColumn[int64]("id"), 0},
		"another schema":         {event.Change{Schema: "test", Kind: event.Alter}, false, IntColumn[int64]("id"), 0},
		"a row of another table": {event.Change{Schema: "test", Table: "users", Kind: event.Insert, After: row(1, nil)}, false, IntColumn[int64]("id"), 0},
		"not known":              {update(row(errUnknown, nil), row(errUnknown, nil)), true, IntColumn[int64]("id"), 1},
		"no such column":         {insert(row(9, nil)), true, IntColumn[int64]("uid"), 1},
		"no number":              {insert(row("private", nil)), true, IntColumn[int64]("id"), 1},
		"a panic":                {insert(row(9, nil)), true, panics, 1},
		"NULL":                   {insert(row(nil, nil)), false, IntColumn[int64]("id"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				x.bindings = []Binding{Bind(x.users, "shop", "users", c.key)}
				x.start()
				x.set(int64(1), "old")
				reads(x, x.users, 1, "old")
				reads(x, x.other, 1, "old")
				x.set(int64(1), "new")
				x.tell("1", c.change)
				want := map[bool]string{true: "new", false: "old"}[c.raised]
				reads(x, x.users, 1, want)
				reads(x, x.other, 1, want)
				if s := x.Stats(); s.Misunderstood != c.not || s.Position != "1" {
					t.Errorf("%+v", s)
				}
				alerts := x.alerted()
				if len(alerts) != int(c.not) || c.not > 0 && alerts[0] != "not understood loader user" {
					t.Errorf("%q", alerts)
				}
				if err := x.Stats().LastError; err != nil && (c.not == 0 || containsPrivate(err)) {
					t.Error(err)
				}
			})
		})
	}
}

func containsPrivate(err error) bool { return strings.Contains(err.Error(), "private") }

// While Redis is out nothing is taken for done: no position is saved, no message acknowledged. It
// is alerted once. When Redis is back, all is done.
func TestRedisOut(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.redis.SetError("LOADING")
		x.set(int64(1), "new")
		x.tell("1", update(row(1, nil), row(1, nil)))
		x.tell("2", insert(row(2, nil)))
		time.Sleep(5 * time.Minute)
		if s := x.Stats(); s.Position != "0" || x.checkpoint.last() != "0" || len(x.source.acked) > 0 ||
			s.Failures < 50 || s.LastError == nil {
			t.Errorf("%+v, saved %q, acknowledged %q", s, x.checkpoint.last(), x.source.acked)
		}
		if got := x.alerted(); !slices.Equal(got, []string{"redis "}) {
			t.Errorf("alerts: %q", got)
		}
		if err := x.Health(time.Hour); !errors.Is(err, cacheaside.ErrRedis) {
			t.Error(err)
		}
		x.redis.SetError("")
		time.Sleep(longPause + 2*time.Second)
		reads(x, x.users, 1, "new")
		synctest.Wait()
		if s := x.Stats(); s.Position != "2" || x.checkpoint.last() != "2" ||
			!slices.Equal(x.source.acked, []event.Position{"1", "2"}) {
			t.Errorf("%+v, saved %q, acknowledged %q", s, x.checkpoint.last(), x.source.acked)
		}
		if err := x.Health(time.Hour); err != nil {
			t.Error(err)
		}
	})
}

// The position is saved each SaveEvery, and in the end; in the midst of a transaction nothing is.
func TestPositionsAreSaved(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.tell("1", insert(row(1, nil)))
		x.tell("", insert(row(2, nil)))
		if p := x.checkpoint.last(); p != "0" {
			t.Errorf("%q is saved at once", p)
		}
		time.Sleep(1100 * time.Millisecond)
		if p := x.checkpoint.last(); p != "1" {
			t.Errorf("%q is saved", p)
		}
		x.tell("3", insert(row(3, nil)))
		x.checkpoint.mu.Lock()
		x.checkpoint.fail = errors.New("disk full")
		x.checkpoint.mu.Unlock()
		time.Sleep(20 * time.Second)
		if got := x.alerted(); !slices.Equal(got, []string{"checkpoint "}) {
			t.Errorf("alerts: %q", got)
		}
		x.checkpoint.mu.Lock()
		x.checkpoint.fail = nil
		x.checkpoint.mu.Unlock()
		time.Sleep(1100 * time.Millisecond)
		x.tell("4")
		time.Sleep(5 * time.Second)
		if p := x.checkpoint.last(); p != "3" {
			t.Errorf("%q is saved, though nothing has changed", p)
		}
		time.Sleep(6 * time.Second)
		x.tell("5")
		x.end()
		if want := []event.Position{"1", "3", "4", "5"}; !slices.Equal(x.checkpoint.saves, want) {
			t.Errorf("saved %q, want %q", x.checkpoint.saves, want)
		}
	})
}

// A Source that fails continues from its position, with ever longer pauses. A Source that is not
// set up ends the Consumer.
func TestSourceFails(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.tell("1", insert(row(1, nil)))
		for range 3 {
			x.source.in <- errors.New("connection lost")
			time.Sleep(time.Second)
		}
		if n := x.source.runs(); n != 4 {
			t.Errorf("%d runs", n)
		}
		for i, need := range x.source.needs {
			if want := event.Position(fmt.Sprint(min(i, 1))); need.From != want || len(need.Tables) != 1 {
				t.Errorf("run %d is from %q: %v", i, need.From, need.Tables)
			}
		}
		if got := x.source.needs[0].Tables[event.Table{Schema: "shop", Name: "users"}]; !slices.Equal(got,
			[]string{"id", "email"}) {
			t.Errorf("columns %q", got)
		}
		x.source.in <- error(nil)
		x.source.in <- func() { panic("private") }
		x.source.in <- runtime.Goexit
		x.source.in <- fmt.Errorf("%w: %w", ErrSetup, ErrSourceClosed)
		if err := <-x.ended; !errors.Is(err, ErrSourceClosed) {
			t.Error(err)
		}
		x.stop()
		x.stop = nil
		if p, n := x.checkpoint.last(), x.Stats().Failures; p != "1" || n != 6 {
			t.Errorf("%q is saved; %d failures", p, n)
		}
	})
}

// silent is a Source that fails after a time, without a word.
type silent time.Duration

func (s silent) Run(ctx context.Context, _ event.Need, _ chan<- event.Batch) error {
	_ = retry.Sleep(ctx, time.Duration(s))
	return errors.New("no answer")
}

// A server that hangs, for which a Source waits long each time, is alerted once, while Health
// reports it each time.
func TestSourceThatHangs(t *testing.T) {
	in(t, func(x *world) {
		c, err := NewConsumer(x.cache, silent(30*time.Second), x.checkpoint, x.bindings, &x.options)
		x.check(err)
		ctx, stop := context.WithCancel(x.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(31 * time.Second)
		for range 100 {
			if err := c.Health(time.Hour); err == nil || !strings.Contains(err.Error(), "no answer") {
				t.Fatalf("Health says %v", err)
			}
			time.Sleep(time.Second)
		}
		if alerts := x.alerted(); len(alerts) != 1 || alerts[0] != "source " {
			t.Errorf("alerts: %q", alerts)
		}
		stop()
		x.check(<-ended)
	})
}

// A table that replaces another one has rows that filters lack.
func TestReplacedTables(t *testing.T) {
	in(t, func(x *world) {
		gaps := 0
		x.options.OnGap = func(ctx context.Context) error {
			gaps++
			if got, err := x.users.Get(ctx, 1); got != "new" || err != nil {
				t.Errorf("%q, %v: not invalidated", got, err)
			}
			return nil
		}
		x.start()
		for n, c := range []event.Change{
			{Schema: "shop", Table: "users", Kind: event.Replace}, {Schema: "shop", Kind: event.Replace}, {Kind: event.Replace, Unread: errors.New("why")},
			{Schema: "shop", Table: "others", Kind: event.Replace}, {Schema: "shop", Table: "users", Kind: event.Alter}, {Schema: "other", Kind: event.Replace, Unread: errors.New("why")},
		} {
			x.set(int64(1), "old")
			reads(x, x.users, 1, "old")
			x.set(int64(1), "new")
			x.tell("1", c)
			if want := min(n+1, 3); gaps != want {
				t.Errorf("change %d: %d calls of OnGap, not %d", n, gaps, want)
			}
			x.tell("1", insert(row(1, nil)))
		}
		if s, alerts := x.Stats(), x.alerted(); s.Misunderstood != 1 || len(alerts) != 1 ||
			alerts[0] != "not understood " {
			t.Errorf("%+v, alerts %q", s, alerts)
		}
	})
}

// When changes may have been missed, everything that is bound is invalidated after the Source has
// started to listen. Then filters, which an invalidation does not repair, are rebuilt.
func TestGap(t *testing.T) {
	for name, first := range map[string]bool{"first start": true, "position lost": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				if first {
					x.checkpoint.at = ""
				}
				x.set(int64(1), "old")
				reads(x, x.users, 1, "old")
				reads(x, x.other, 1, "old")
				gaps, fails := 0, 2
				x.options.OnGap = func(ctx context.Context) error {
					if got, err := x.users.Get(ctx, 1); got != "new" || err != nil {
						t.Errorf("%q, %v: not invalidated", got, err)
					}
					if x.checkpoint.last() != "" && first || x.source.runs() == 0 {
						t.Error("too early, or too late")
					}
					gaps++
					if fails--; fails >= 0 {
						return errors.New("not now")
					}
					return nil
				}
				x.set(int64(1), "new")
				if !first {
					x.source.in <- fmt.Errorf("%w: purged", ErrPositionLost)
				}
				x.start()
				time.Sleep(10 * time.Second)
				reads(x, x.users, 1, "new")
				reads(x, x.other, 1, "new")
				x.tell("5", insert(row(7, nil)))
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if gaps != 3 || x.checkpoint.last() != "5" {
					t.Errorf("%d calls of OnGap, saved %q", gaps, x.checkpoint.last())
				}
				s := x.Stats()
				if alerts := x.alerted(); (s.PositionsLost == 1) == first ||
					slices.Contains(alerts, "position lost ") == first {
					t.Errorf("%+v, alerts %q", s, alerts)
				}
			})
		})
	}
}

func TestStopWhenLost(t *testing.T) {
	in(t, func(x *world) {
		x.options.StopWhenLost = true
		x.source.in <- fmt.Errorf("%w: purged", ErrPositionLost)
		x.start()
		if err := <-x.ended; !errors.Is(err, ErrPositionLost) {
			t.Error(err)
		}
		x.stop()
		x.stop = nil
		if p := x.checkpoint.last(); p != "0" {
			t.Errorf("%q is saved", p)
		}
	})
}

// Handlers get changes in order, after the caches are invalidated, and again after a failure. A
// change that they never accept is parked and does not delay the next ones.
func TestHandlers(t *testing.T) {
	in(t, func(x *world) {
		x.set(int64(1), "old")
		var got []string
		x.bindings = append(x.bindings,
			Handle("search", "shop", "users", func(ctx context.Context, c event.Change) error {
				id := c.After.Get("Id").Text()
				got = append(got, id)
				switch id {
				case "1":
					if v, err := x.users.Get(ctx, 1); v != "new" {
						t.Errorf("%q, %v: not invalidated", v, err)
					}
				case "2":
					return errors.New("never")
				case "3":
					if len(got) < 9 {
						panic("private")
					}
				}
				return nil
			}))
		x.start()
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.tell("1", insert(row(1, nil)), insert(row(2, nil)), insert(row(3, nil)), insert(row(4, nil)))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if want := []string{"1", "2", "2", "2", "2", "2", "3", "3", "3", "4"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		parked := x.parking.all()
		if len(parked) != 1 || parked[0].Binding != "handler search" ||
			parked[0].Change.After.Get("id").Text() != "2" || parked[0].Reason != "never" || parked[0].Time.IsZero() {
			t.Errorf("%+v", parked)
		}
		if s := x.Stats(); s.Handled != 3 || s.HandlerErrors != 7 || s.Parked != 1 || s.Position != "1" {
			t.Errorf("%+v", s)
		}
		if alerts := x.alerted(); !slices.Equal(alerts, []string{"parked handler search"}) {
			t.Errorf("%q", alerts)
		}
	})
}

// What a Source cannot read is kept.
func TestMalformed(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.source.in <- event.Batch{Position: "1",
			Malformed: &event.Malformed{Message: []byte("{"), Err: errors.New("no JSON")}}
		synctest.Wait()
		if p := x.parking.all(); len(p) != 1 || string(p[0].Message) != "{" || p[0].Reason != "no JSON" {
			t.Errorf("%+v", p)
		}
		if s := x.Stats(); s.Malformed != 1 || s.Parked != 1 || s.Position != "1" {
			t.Errorf("%+v", s)
		}
	})
}

func TestCacheClosed(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.cache.Close()
		x.tell("1", insert(row(1, nil)))
		if err := <-x.ended; !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(err)
		}
		x.stop()
		x.stop = nil
	})
}

// Lag and Health show how far the Consumer is behind.
func TestHealth(t *testing.T) {
	in(t, func(x *world) {
		c, err := NewConsumer(x.cache, x.source, x.checkpoint, x.bindings, nil)
		x.check(err)
		if err := c.Health(time.Second); err == nil || c.Stats().Lag != -1 {
			t.Error("it does not run")
		}
		x.start()
		if err := x.Health(time.Second); err != nil || x.Stats().Lag != 0 {
			t.Error(err, x.Stats().Lag)
		}
		time.Sleep(3 * time.Second)
		if err := x.Health(time.Second); err == nil || x.Stats().Lag != 3*time.Second {
			t.Error("healthy, without any batch for 3 s")
		}
		x.tell("1")
		if err := x.Health(time.Second); err != nil {
			t.Error(err)
		}
		if err := x.Consumer.Run(x.Context()); err == nil {
			t.Error("it runs twice")
		}
	})
}

func TestNewConsumerChecks(t *testing.T) {
	in(t, func(x *world) {
		pages := grouped[string](x, x.cache, nil)
		ok := Bind(x.users, "shop", "users", IntColumn[int64]("id"))
		handle := Handle("h", "shop", "users", func(context.Context, event.Change) error { return nil })
		for name, c := range map[string]struct {
			bindings []Binding
			options  *Options
			want     string
		}{
			"none":        {nil, nil, "canal: no Bindings"},
			"zero":        {[]Binding{{}}, nil, `canal: Binding 0: : schema "", table "": neither can be empty`},
			"nil loader":  {[]Binding{ok, Bind[int64, string](nil, "shop", "users", IntColumn[int64]("id"))}, nil, "canal: Binding 1: of shop.users: the loader is nil"},
			"nil key":     {[]Binding{Bind(x.users, "shop", "users", Mapping[int64]{})}, nil, "canal: Binding 0: of shop.users: Mapping.Key is nil"},
			"nil group":   {[]Binding{BindGroup(pages, "shop", "users", Mapping[string]{})}, nil, "canal: Binding 0: of shop.users: Mapping.Key is nil"},
			"no loader":   {[]Binding{BindGroup[int64, string](nil, "shop", "users", Text("email", "%s"))}, nil, "canal: Binding 0: of shop.users: the loader is nil"},
			"no groups":   {[]Binding{BindGroup(x.users, "shop", "users", Text("email", "%s"))}, nil, "canal: Binding 0: of shop.users: the loader has no LoaderOptions.Groups"},
			"no column":   {[]Binding{BindGroup(pages, "shop", "users", Text("", "%s"))}, nil, "canal: Binding 0: of shop.users: Text: the column is empty"},
			"no verb":     {[]Binding{BindGroup(pages, "shop", "users", Text("email:%s", "email"))}, nil, `canal: Binding 0: of shop.users: Text: the format "email" of the column email:%s: it must contain %s once, and no other %`},
			"two verbs":   {[]Binding{Bind(x.byEmail, "shop", "users", Text("email", "%s %d"))}, nil, `canal: Binding 0: of shop.users: Text: the format "%s %d" of the column email: it must contain %s once, and no other %`},
			"filter verb": {[]Binding{BindFilter("f", &knows{}, "shop", "users", Text("email", "%v"))}, nil, `canal: Binding 0: of shop.users: Text: the format "%v" of the column email: it must contain %s once, and no other %`},
			"no table":    {[]Binding{Bind(x.users, "shop", "", IntColumn[int64]("id"))}, nil, `canal: Binding 0: loader user: schema "shop", table "": neither can be empty`},
			"name":        {[]Binding{Handle("a b", "shop", "users", func(context.Context, event.Change) error { return nil })}, nil, `canal: Binding 0: of shop.users: the name "a b": letters, digits, '_', '.' and '-'`},
			"no parking":  {[]Binding{handle}, nil, "canal: Binding 0, handler h, needs Options.Parking"},
			"attempts":    {[]Binding{ok}, &Options{Attempts: -1}, "canal: Options.Attempts -1: at least 1"},
			"save every":  {[]Binding{ok}, &Options{SaveEvery: -1}, "canal: Options.SaveEvery -1ns: cannot be negative"},
			"alert after": {[]Binding{ok}, &Options{AlertAfter: -1}, "canal: Options.AlertAfter -1ns: cannot be negative"},
		} {
			if _, err := NewConsumer(x.cache, x.source, x.checkpoint, c.bindings, c.options); err == nil ||
				err.Error() != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := NewConsumer(nil, x.source, nil, []Binding{ok}, nil); err == nil {
			t.Error("no cache")
		}
		if _, err := NewConsumer(x.cache, nil, nil, []Binding{ok}, nil); err == nil {
			t.Error("no source")
		}
	})
}

// Of two Consumers with one lock, one works. When it ends, the other continues from its position.
func TestOneIsActive(t *testing.T) {
	in(t, func(x *world) {
		locker, err := lock.NewLocal(nil)
		x.check(err)
		defer locker.Close()
		x.options.Locker = locker
		x.start()
		x.tell("1", insert(row(1, nil)))
		second := &told{begins: "0", in: make(chan any, 10)}
		other, err := NewConsumer(x.cache, second, x.checkpoint, x.bindings, &x.options)
		x.check(err)
		ctx, stop := context.WithCancel(x.Context())
		ended := make(chan error, 1)
		go func() { ended <- other.Run(ctx) }()
		time.Sleep(time.Minute)
		if other.Stats().Active || second.runs() > 0 || other.Health(time.Second) != nil || !x.Stats().Active {
			t.Error("both are active")
		}
		x.tell("2", insert(row(2, nil)))
		x.end()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !other.Stats().Active || second.runs() != 1 || second.needs[0].From != "2" || x.Stats().Active {
			t.Errorf("the second Consumer has not taken over: %+v", second.needs)
		}
		stop()
		x.check(<-ended)
		locker.Close()
		x.stop = nil
		if err := x.Consumer.Run(x.Context()); !errors.Is(err, lock.ErrClosed) {
			t.Error(err)
		}
	})
}

// knows is a filter that records its calls.
type knows struct {
	keys    []string
	deleted int
	fails   int
	told    func()
}

func (k *knows) MightContain(context.Context, string) (bool, error) { return true, nil }
func (k *knows) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	return slices.Repeat([]bool{true}, len(keys)), nil
}
func (k *knows) AddMany(context.Context, []string) error { return nil }
func (k *knows) NotFound(int)                            {}
func (k *knows) Inserting(_ context.Context, keys []string) (func(context.Context) error, error) {
	if k.fails--; k.fails >= 0 {
		return nil, errors.New("no filter")
	}
	if k.told != nil {
		k.told()
	}
	k.keys = append(k.keys, keys...)
	return nil, nil
}
func (k *knows) Deleted(_ context.Context, rows int) error {
	k.deleted += rows
	return nil
}

// A row with a new key is added to its loader's filter before the cached absence is invalidated. A
// row that existed before costs the filter nothing. A filter that fails is called again, and delays
// no invalidation.
func TestFilterOfALoader(t *testing.T) {
	in(t, func(x *world) {
		filter := &knows{fails: 3}
		l, err := cacheaside.NewLoader(x.cache, "filtered", func(_ context.Context, id int64) (string, error) {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.rows[id], nil
		}, &cacheaside.LoaderOptions{Filter: filter, EarlyRefresh: -1})
		x.check(err)
		reads := func(want string) {
			t.Helper()
			if got, err := l.Get(x.Context(), 1); got != want || err != nil {
				t.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
		x.set(int64(1), "old")
		reads("old")
		x.bindings = []Binding{Bind(l, "shop", "users", IntColumn[int64]("id"))}
		x.start()
		x.set(int64(1), "new")
		filter.told = func() {
			if got, _ := l.Get(x.Context(), 1); got != "new" {
				t.Errorf("%q: it is kept stale by a filter that fails", got)
			}
			x.set(int64(1), "newer")
		}
		x.source.in <- event.Batch{Position: "1", Changes: []event.Change{insert(row(1, nil)),
			update(row(2, "a"), row(2, "b")), update(row(3, nil), row(4, nil)), remove(row(5, nil))}}
		time.Sleep(time.Minute)
		synctest.Wait()
		slices.Sort(filter.keys)
		if want := []string{"1", "4"}; !slices.Equal(filter.keys, want) || filter.deleted != 0 {
			t.Errorf("added %q, want %q; %d deletes", filter.keys, want, filter.deleted)
		}
		reads("newer")
		if s := x.Stats(); s.Position != "1" || s.Failures != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A filter that is bound directly gets each new key, and the number of deletions, once. A change
// that cannot be decoded is parked.
func TestBindFilter(t *testing.T) {
	in(t, func(x *world) {
		filter := &knows{fails: 1}
		x.bindings = []Binding{BindFilter("emails", filter, "shop", "users", TextColumn[string]("email"))}
		x.options.OnGap = func(context.Context) error { return nil }
		x.start()
		x.source.in <- event.Batch{Position: "1", Changes: []event.Change{
			insert(row(1, "a")), update(row(1, "a"), row(1, "b")), update(row(1, "b"), row(2, "b")),
			remove(row(2, "b")), insert(row(3, nil)), insert(row(4, errUnknown)),
			{Schema: "shop", Table: "users", Kind: event.Truncate},
		}}
		time.Sleep(time.Minute)
		synctest.Wait()
		slices.Sort(filter.keys)
		if want := []string{"a", "b"}; !slices.Equal(filter.keys, want) || filter.deleted != 2 {
			t.Errorf("added %q, want %q; %d deletes", filter.keys, want, filter.deleted)
		}
		if p := x.parking.all(); len(p) != 1 || p[0].Binding != "filter emails" ||
			p[0].Change.After.Get("id").Text() != "4" {
			t.Errorf("%v", p)
		}
		if s := x.Stats(); s.Misunderstood != 1 || s.Parked != 1 || s.Position != "1" {
			t.Errorf("%+v", s)
		}
	})
}

// secret is a key that has no text if it is "bad".
type secret string

func (s secret) MarshalText() ([]byte, error) {
	if s == "bad" {
		return nil, errors.New("no text")
	}
	return []byte(s), nil
}

// A row whose key has no valid text is parked and delays no other change.
func TestKeyWithoutText(t *testing.T) {
	in(t, func(x *world) {
		l := loader[secret](x, x.cache, "secret")
		x.bindings = []Binding{Bind(l, "shop", "users", TextColumn[secret]("email"))}
		x.start()
		x.set(secret("good"), "old")
		reads(x, l, "good", "old")
		x.set(secret("good"), "new")
		x.tell("1", update(row(1, "bad"), row(1, "fine")), update(row(1, "fine"), row(1, "bad")))
		reads(x, l, "good", "new")
		if s := x.Stats(); s.Misunderstood != 2 || s.Position != "1" || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Batches without changes, in any number, do not delay batches with changes for longer than a few
// of them take.
func TestIdleBatches(t *testing.T) {
	endless := make(chan event.Batch, 1)
	stop := make(chan struct{})
	go func() {
		defer close(endless)
		for {
			select {
			case endless <- event.Batch{Position: "x"}:
			case <-stop:
				return
			}
		}
	}()
	all := make(chan []event.Batch)
	go collect(t.Context(), endless, all)
	for range 10 {
		time.Sleep(time.Millisecond)
		if some := <-all; len(some) > maxChanges {
			t.Errorf("%d batches at once", len(some))
		}
	}
	close(stop)
	for range all { // to its end
	}
}

// A Source that begins, and at once has lost its position, again and again, makes no more work than
// one that fails, and is alerted as that.
func TestLostAgainAndAgain(t *testing.T) {
	in(t, func(x *world) {
		for range 100 {
			x.source.in <- fmt.Errorf("%w: purged", ErrPositionLost)
		}
		x.start()
		time.Sleep(time.Minute)
		if n := x.source.runs(); n < 10 || n > 40 {
			t.Errorf("%d runs within a minute", n)
		}
		if got := x.alerted(); !slices.Contains(got, "source ") || x.Health(time.Hour) == nil {
			t.Errorf("%q", got)
		}
	})
}

// asking is a log that asks how things are.
type asking struct {
	slog.Handler
	ask func()
}

func (a asking) Handle(context.Context, slog.Record) error {
	a.ask()
	return nil
}

func TestLoggersMayAsk(t *testing.T) {
	in(t, func(x *world) {
		asked := 0
		x.bindings = x.bindings[:1]
		x.options.Logger = slog.New(asking{slog.NewTextHandler(t.Output(), nil), func() {
			_ = x.Health(time.Second)
			asked++
		}})
		x.start()
		x.redis.SetError("LOADING")
		x.tell("1", insert(row("no number", nil)))
		time.Sleep(time.Minute)
		x.redis.SetError("")
		time.Sleep(time.Minute)
		synctest.Wait()
		if asked != 3 || x.Stats().Position != "1" { // not understood; Redis is out; it works again
			t.Errorf("%d lines: %+v", asked, x.Stats())
		}
	})
}

// slice is a filter that cannot be compared.
type slice []*knows

func (s slice) Inserting(ctx context.Context, keys []string) (func(context.Context) error, error) {
	return s[0].Inserting(ctx, keys)
}
func (s slice) Deleted(ctx context.Context, rows int) error { return s[0].Deleted(ctx, rows) }

func TestFilterThatCannotBeCompared(t *testing.T) {
	in(t, func(x *world) {
		f := slice{{}}
		x.bindings = []Binding{BindFilter("emails", f, "shop", "users", TextColumn[string]("email"))}
		x.options.OnGap = func(context.Context) error { return nil }
		x.start()
		x.tell("1", insert(row(1, "a")))
		if !slices.Equal(f[0].keys, []string{"a"}) {
			t.Errorf("%q", f[0].keys)
		}
	})
}
