package canal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/logitem"
)

// messenger is a Source that delivers messages.
type messenger struct{ *told }

func (messenger) DeliversMessages() {}

// startOutbox starts a Consumer of an outbox only.
func (w *world) startOutbox() {
	w.Helper()
	w.bindings = []Binding{BindOutbox("")}
	var err error
	w.Consumer, err = NewConsumer(w.cache, messenger{w.source}, w.checkpoint, w.bindings, &w.options)
	w.check(err)
	w.begin()
}

// items returns a message with items of the namespace "cacheaside".
func items(all ...logitem.Item) event.Message {
	return event.Message{Prefix: "cacheaside:cacheaside", Content: logitem.Encode(all)[0]}
}

func keysOnly(keys ...cacheaside.Key) event.Message {
	var all []logitem.Item
	for _, k := range keys {
		all = append(all, logitem.Item{Key: k})
	}
	return items(all...)
}

// hear has the Source deliver messages, up to a position, and waits until everything is idle.
func (w *world) hear(p event.Position, messages ...event.Message) {
	w.Helper()
	w.source.in <- event.Batch{Messages: messages, Position: p, Time: time.Now()}
	w.alerted()
}

// The keys of the items are invalidated in all processes, and no others. Messages of others are
// nothing.
func TestOutboxKeys(t *testing.T) {
	in(t, func(x *world) {
		x.startOutbox()
		if got := x.source.needs[0]; !slices.Equal(got.Messages, []string{"cacheaside:cacheaside"}) ||
			len(got.Tables) != 0 {
			t.Errorf("%+v", got)
		}
		read := func(want ...string) {
			t.Helper()
			for _, l := range []*cacheaside.Loader[int64, string]{x.users, x.other} {
				for id, want := range want {
					reads(x, l, int64(id), want)
				}
			}
		}
		write := func(v string) {
			for id := range int64(4) {
				x.set(id, v)
			}
			x.set("a@b", v)
		}
		write("old")
		read("old", "old", "old", "old")
		reads(x, x.byEmail, "a@b", "old")
		write("new")
		other := keysOnly(x.users.Key(3))
		other.Prefix = "cacheaside:other"
		x.hear("1", keysOnly(x.users.Key(0)), keysOnly(x.users.Key(2)), other,
			event.Message{Prefix: "cacheaside", Content: []byte("x")}, event.Message{})
		read("new", "old", "new", "old")
		reads(x, x.byEmail, "a@b", "old")
		x.hear("2", keysOnly(x.users.AllKeys()))
		x.source.in <- event.Batch{Messages: []event.Message{keysOnly(x.users.Key(0))}, Position: "3", Time: time.Now()}
		if time.Sleep(2 * time.Second); x.checkpoint.last() != "3" { // SaveEvery is 1 s
			t.Errorf("saved %q", x.checkpoint.last())
		}
		read("new", "new", "new", "new")
		reads(x, x.byEmail, "a@b", "old")
		if s := x.Stats(); s.Messages != 7 || s.Position != "3" || s.Misunderstood != 0 || s.Parked != 0 ||
			len(s.NoChanges) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The keys that a filter may lack are added to it, and no others. A later item of the same key does
// not prevent that. While the filter fails, the keys are invalidated anyway.
func TestOutboxFilters(t *testing.T) {
	in(t, func(x *world) {
		filter := &knows{fails: 3}
		l, err := cacheaside.NewLoader(x.cache, "filtered", func(_ context.Context, id int64) (string, error) {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.rows[id], nil
		}, &cacheaside.LoaderOptions{Filter: filter, EarlyRefresh: -1})
		x.check(err)
		x.startOutbox()
		x.set(int64(1), "old")
		reads(x, l, 1, "old")
		x.set(int64(1), "new")
		filter.told = func() { reads(x, l, 1, "new") }
		x.hear("1", items(logitem.Item{Key: l.Key(1), Inserting: true}, logitem.Item{Key: l.Key(2)},
			logitem.Item{Key: l.Key(1)}))
		time.Sleep(time.Minute)
		if s := x.Stats(); !slices.Equal(filter.keys, []string{"1"}) || s.Position != "1" || s.Failures != 3 {
			t.Errorf("%q, %+v", filter.keys, s)
		}
	})
}

// What cannot be read may be about any key. It is parked, and no log has it.
func TestOutboxGarbage(t *testing.T) {
	in(t, func(x *world) {
		gaps := 0
		x.options.OnGap = func(context.Context) error { gaps++; return nil }
		x.startOutbox()
		x.hear("1", event.Message{Prefix: "cacheaside:cacheaside"})
		if gaps != 0 || len(x.parking.all()) != 1 {
			t.Errorf("%d gaps without a filter, %+v", gaps, x.parking.all())
		}
		time.Sleep(2 * time.Second) // alerts are limited
		_, err := cacheaside.NewLoader(x.cache, "filtered", func(context.Context, int64) (string,
			error) {
			return "", nil
		}, &cacheaside.LoaderOptions{Filter: &knows{}})
		x.check(err)
		x.set(int64(1), "old")
		x.set("a@b", "old")
		reads(x, x.users, 1, "old")
		reads(x, x.byEmail, "a@b", "old")
		x.set(int64(1), "new")
		x.set("a@b", "new")
		garbage := []byte("secret")
		x.source.in <- event.Batch{Messages: []event.Message{{Prefix: "cacheaside:cacheaside", Content: garbage}},
			Position: "1", Time: time.Now()}
		if got := slices.Sorted(slices.Values(x.alerted())); !slices.Equal(got,
			[]string{"not understood outbox", "parked outbox"}) {
			t.Errorf("%q", got)
		}
		reads(x, x.users, 1, "new")
		reads(x, x.byEmail, "a@b", "new")
		all := x.parking.all()[1:]
		if len(all) != 1 || all[0].Binding != "outbox" || string(all[0].Message) != "secret" ||
			!strings.Contains(all[0].Reason, "of 6 bytes (#") || strings.Contains(all[0].Reason, "secret") {
			t.Errorf("%+v", all)
		}
		if s := x.Stats(); s.Misunderstood != 2 || s.Parked != 2 || s.Position != "1" || gaps != 1 ||
			strings.Contains(s.LastError.Error(), "secret") {
			t.Errorf("%d gaps, %+v", gaps, s)
		}
	})
}

// Keys of loaders that only other processes have are invalidated. That their filter may lack them
// is not repaired by that.
func TestOutboxUnknownLoader(t *testing.T) {
	in(t, func(x *world) {
		elsewhere := loader[int64](x, x.caches[1], "elsewhere")
		x.startOutbox()
		for n, c := range []struct {
			admit bool
			want  []string
		}{{false, []string{"not understood outbox"}}, {true, []string{"not understood outbox", "parked outbox"}}} {
			x.set(int64(1), fmt.Sprint("old", n))
			x.check(elsewhere.Invalidate(x.Context(), 1))
			reads(x, elsewhere, 1, fmt.Sprint("old", n))
			x.set(int64(1), fmt.Sprint("new", n))
			time.Sleep(2 * time.Second) // alerts are limited
			x.source.in <- event.Batch{Messages: []event.Message{items(logitem.Item{Key: elsewhere.Key(1),
				Inserting: c.admit})}, Position: "1", Time: time.Now()}
			if got := slices.Sorted(slices.Values(x.alerted())); !slices.Equal(got, c.want) {
				t.Errorf("%v: %q", c.admit, got)
			}
			reads(x, elsewhere, 1, fmt.Sprint("new", n))
		}
		if all := x.parking.all(); len(all) != 1 || !strings.Contains(all[0].Reason, "elsewhere") {
			t.Errorf("%+v", all)
		}
		var many []logitem.Item
		for n := range 3 * maxUnknown {
			many = append(many, logitem.Item{Key: cacheaside.Key{Loader: fmt.Sprint("unknown", n), Text: "1"},
				Inserting: true})
		}
		x.hear("2", items(append(many, many...)...))
		if all := x.parking.all(); len(all) != 2 || strings.Count(all[1].Reason, "unknown") != maxUnknown {
			t.Errorf("%+v", all)
		}
	})
}

// Items that were lost are about any key of any loader, although no table is bound. So is a Replace
// of all tables, and the first start of all.
func TestOutboxMissedItems(t *testing.T) {
	lost := func(x *world) { x.source.in <- fmt.Errorf("%w: the slot is gone", ErrPositionLost) }
	for name, miss := range map[string]func(x *world){
		"lost":     lost,
		"replaced": func(x *world) { x.tell("1", event.Change{Kind: event.Replace}) },
		"first": func(x *world) {
			x.end()
			x.checkpoint.at = ""
			x.startOutbox()
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				gaps := 0
				x.options.OnGap = func(context.Context) error { gaps++; return nil }
				x.startOutbox()
				x.set(int64(1), "old")
				x.set("a@b", "old")
				reads(x, x.users, 1, "old")
				reads(x, x.byEmail, "a@b", "old")
				x.set(int64(1), "new")
				x.set("a@b", "new")
				miss(x)
				time.Sleep(10 * time.Second)
				reads(x, x.users, 1, "new")
				reads(x, x.byEmail, "a@b", "new")
				if gaps != 1 {
					t.Errorf("%d gaps", gaps)
				}
			})
		})
	}
}

// A process without loaders could not repair what was missed, so it does not consume.
func TestOutboxWithoutLoaders(t *testing.T) {
	in(t, func(x *world) {
		c, err := NewConsumer(x.process(), messenger{x.source}, x.checkpoint, []Binding{BindOutbox("")}, &x.options)
		x.check(err)
		ctx, stop := context.WithTimeout(x.Context(), time.Minute)
		defer stop()
		if err := c.Run(ctx); !errors.Is(err, ErrSetup) || !strings.Contains(err.Error(), "no loader") ||
			x.source.runs() != 0 {
			t.Error(err, x.source.runs())
		}
	})
}

// A position is not processed, and not saved, before the items up to it are applied.
func TestOutboxWaitsForRedis(t *testing.T) {
	in(t, func(x *world) {
		x.startOutbox()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.redis.SetError("broken")
		x.hear("1", keysOnly(x.users.Key(1)))
		time.Sleep(time.Minute)
		if s := x.Stats(); s.Position != "0" || s.Messages != 0 || x.checkpoint.last() != "0" {
			t.Errorf("%+v, saved %q", s, x.checkpoint.last())
		}
		x.redis.SetError("")
		time.Sleep(time.Minute)
		reads(x, x.users, 1, "new")
		if s := x.Stats(); s.Position != "1" || s.Messages != 1 || x.checkpoint.last() != "1" {
			t.Errorf("%+v, saved %q", s, x.checkpoint.last())
		}
	})
}

func TestOutboxSetup(t *testing.T) {
	in(t, func(x *world) {
		for want, edit := range map[string]func() (Source, []Binding, Options){
			"MessageSource": func() (Source, []Binding, Options) { return x.source, []Binding{BindOutbox("")}, x.options },
			"one outbox": func() (Source, []Binding, Options) {
				return messenger{x.source}, []Binding{BindOutbox("a"), BindOutbox("b")}, x.options
			},
			"Options.Parking": func() (Source, []Binding, Options) { return messenger{x.source}, []Binding{BindOutbox("")}, Options{} },
			`namespace "a:b"`: func() (Source, []Binding, Options) {
				return messenger{x.source}, []Binding{BindOutbox("a:b")}, x.options
			},
			"255 at most": func() (Source, []Binding, Options) {
				return messenger{x.source}, []Binding{BindOutbox(strings.Repeat("a", 256))}, x.options
			},
		} {
			source, bindings, options := edit()
			if _, err := NewConsumer(x.cache, source, x.checkpoint, bindings, &options); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
		}
		c, err := NewConsumer(x.cache, messenger{x.source}, nil, []Binding{BindOutbox("shop")}, &x.options)
		x.check(err)
		if got := c.messages(); !slices.Equal(got, []string{"cacheaside:shop"}) {
			t.Errorf("%q", got)
		}
		if err := c.Health(time.Second); err == nil || errors.Is(err, ErrSetup) {
			t.Error(err)
		}
	})
}
