package canal

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
)

// stuck is a filter to which nothing can be added, nor with a filter of a loader anything be
// committed.
type stuck struct {
	knows
	goOn chan bool
}

func (s *stuck) Inserting(context.Context, []string) (func(context.Context) error, error) {
	<-s.goOn
	return nil, nil
}

// Health, Stats and an alert name each call that hangs in a Consumer.
func TestHangs(t *testing.T) {
	goOn := make(chan bool)
	for name, c := range map[string]struct {
		bind  func(x *world) Binding
		title string
		alert string
	}{
		"a handler": {
			func(*world) Binding {
				return Handle("search", "shop", "users",
					func(context.Context, event.Change) error { <-goOn; return nil })
			}, "handler search of shop.users", "hangs handler search",
		},
		"a filter": {
			func(*world) Binding {
				return BindFilter("emails", &stuck{goOn: goOn}, "shop", "users", TextColumn[string]("email"))
			}, "filter emails of shop.users", "hangs filter emails",
		},
		"a loader's filter": {
			func(x *world) Binding {
				l, err := cacheaside.NewLoader(x.cache, "filtered", func(context.Context, int64) (string,
					error) {
					return "", nil
				}, &cacheaside.LoaderOptions{Filter: &stuck{goOn: goOn}})
				x.check(err)
				return Bind(l, "shop", "users", IntColumn[int64]("id"))
			}, "the invalidation or the filter of a loader (filtered, user, user-by-email)", "hangs ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				goOn = make(chan bool)
				x.options.OnGap = func(context.Context) error { return nil }
				x.bindings = append(x.bindings, c.bind(x))
				x.start()
				x.tell("1", insert(row(1, "a@b")))
				time.Sleep(9 * time.Second)
				if err := x.Health(10 * time.Second); err != nil {
					x.Error(err)
				}
				if err := x.Health(5 * time.Second); err == nil || !strings.Contains(err.Error(), c.title) {
					x.Errorf("Health: %v", err)
				}
				if got := x.alerted(); len(got) > 0 {
					x.Errorf("%q", got)
				}
				time.Sleep(time.Minute)
				if s := x.Stats(); s.WaitingFor != c.title || s.Busy < time.Minute || s.Alerts != 1 ||
					!strings.Contains(s.LastError.Error(), c.title) {
					x.Errorf("%+v", s)
				}
				if got := x.alerted(); !slices.Equal(got, []string{c.alert}) {
					x.Errorf("%q", got)
				}
				close(goOn)
				time.Sleep(time.Second)
				x.tell("2", insert(row(2, "c@d")))
				if s := x.Stats(); s.WaitingFor != "" || s.Busy != 0 || s.Position != "2" ||
					x.Health(time.Second) != nil {
					x.Errorf("%+v, %v", s, x.Health(time.Second))
				}
			})
		})
	}
}

// A handler that stays slow is alerted once, and again after it has been fast in between.
func TestSlowHandler(t *testing.T) {
	in(t, func(x *world) {
		takes := 11 * time.Second
		x.bindings = append(x.bindings, Handle("slow", "shop", "users",
			func(context.Context, event.Change) error { time.Sleep(takes); return nil }))
		x.start()
		for range 5 {
			x.tell("", insert(row(1, "a@b")))
		}
		time.Sleep(2 * time.Minute)
		if got := x.alerted(); !slices.Equal(got, []string{"hangs handler slow"}) || x.Health(time.Hour) != nil {
			x.Errorf("%q, %v", got, x.Health(time.Hour))
		}
		takes = time.Second
		x.tell("", insert(row(1, "a@b")))
		time.Sleep(2 * time.Second)
		takes = 11 * time.Second
		x.tell("", insert(row(1, "a@b")))
		time.Sleep(20 * time.Second)
		if got := x.alerted(); !slices.Equal(got, []string{"hangs handler slow"}) {
			x.Errorf("%q", got)
		}
	})
}

// asks is a filter that has another cache, which was closed.
type asks struct{ knows }

func (asks) Inserting(context.Context, []string) (func(context.Context) error, error) {
	return nil, cacheaside.ErrClosed
}

// Another cache that is closed does not end a Consumer.
func TestAnotherCacheIsClosed(t *testing.T) {
	in(t, func(x *world) {
		x.options.OnGap = func(context.Context) error { return nil }
		x.bindings = append(x.bindings, BindFilter("emails", &asks{}, "shop", "users", TextColumn[string]("email")))
		x.start()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.tell("1", update(row(1, "a@b"), row(1, "c@d")))
		time.Sleep(time.Minute)
		reads(x, x.users, 1, "new")
		if err := x.Health(time.Hour); !errors.Is(err, cacheaside.ErrClosed) {
			x.Errorf("Health: %v", err)
		}
		if got := x.alerted(); !slices.Equal(got, []string{"redis "}) {
			x.Errorf("%q", got)
		}
	})
}
