package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A relay that lacks the item's loader, whose filter may need the key, leaves the item to a relay
// that has it. It invalidates the key once, counts the item, and alerts when no such relay comes.
func TestRelayWithoutTheLoader(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.lacks = "foreign"
		r, _ := s.start(RelayOptions{})
		foreign := keyOf("foreign", 1)
		s.put(Item{Key: foreign, Inserting: true}, Item{Key: keyOf("foreign", 2)},
			Item{Key: relayKey(3), Inserting: true},
			Item{Key: cacheaside.Key{Loader: "foreign", All: true}, Inserting: true})
		s.at(time.Second)
		if st := r.Stats(); st.Done != 3 || st.Unknown == 0 || st.Alerts != 0 || st.Failed != 0 {
			s.Errorf("%+v", st)
		}
		s.at(20 * time.Second)
		if st := r.Stats(); st.Unknown < 10 || st.Failed != 0 { // each 2 s at most
			s.Errorf("%+v", st)
		}
		alerts := s.gotAlerts()
		if len(alerts) != 1 || alerts[0].Attempts != 10 ||
			!strings.Contains(alerts[0].Err.Error(), "loader foreign: no relay in this process has this loader") {
			s.Errorf("%+v", alerts)
		}
		s.at(time.Hour)
		if got := s.cache.times("invalidate", foreign.Text, s.began); len(got) != 1 || got[0] != 0 {
			s.Errorf("invalidated after %v", got)
		}
		if n := r.Stats().Unknown; n > 200 {
			s.Errorf("%d times within an hour", n)
		}
		if alerts := s.gotAlerts(); len(alerts) != 0 {
			s.Errorf("%+v", alerts)
		}
		has, other := s.startWith()
		s.drained(20 * time.Minute)
		if got := has.times("committed", foreign.Text, s.began); len(got) != 1 || other.Stats().Done != 1 {
			s.Errorf("done after %v", got)
		}
	})
}

// Many items whose loader no relay has are tried rarely, each more rarely as their number grows,
// and are reported at once. Items that a relay can do are not delayed by them.
func TestRelayOfManyWithoutTheLoader(t *testing.T) {
	inStation(t, nil, func(s *station) {
		const n = 2500
		s.cache.lacks = "foreign"
		r, _ := s.start(RelayOptions{})
		for i := range n {
			s.put(Item{Key: keyOf("foreign", i), Inserting: true})
		}
		s.at(time.Second)
		if st := r.Stats(); st.Unknown < n {
			s.Errorf("%+v", st)
		}
		if alerts := s.gotAlerts(); len(alerts) != 1 ||
			!strings.Contains(alerts[0].Err.Error(), "loader foreign: no relay in this process has this loader") {
			s.Errorf("%+v", alerts)
		}
		last := 20
		if testenv.Accepting {
			last = 60
		}
		for second := 2; second <= last; second++ {
			before := r.Stats().Unknown
			s.at(time.Duration(second) * time.Second)
			if tried := r.Stats().Unknown - before; tried > 450 {
				// those of two seconds at first, as none comes back within one
				s.Fatalf("%d of %d were tried in second %d", tried, n, second)
			}
			s.put(Item{Key: relayKey(second)})
			s.at(time.Duration(second)*time.Second + 500*time.Millisecond)
			if got := s.cache.times("committed", relayKey(second).Text, s.began); len(got) != 1 {
				s.Fatalf("what was put in second %d was done after %v", second, got)
			}
		}
		if alerts := s.gotAlerts(); len(alerts) != 0 {
			s.Errorf("%+v", alerts)
		}
		has, _ := s.startWith()
		s.drained(20 * time.Minute)
		if got := has.times("committed", keyOf("foreign", 1).Text, s.began); len(got) != 1 {
			s.Errorf("done after %v", got)
		}
	})
}

// TestManyForeignItems: with many items in the outbox that no relay can do, other keys are fresh
// soon after they were written.
func TestManyForeignItems(t *testing.T) { testenv.OneUnlessAccepting(t, testManyForeignItems) }

func testManyForeignItems(t *testing.T, e testenv.Engine) {
	n := 2500
	if testenv.Accepting {
		n = 100_000
	}
	x := start(t, setup{engine: e, Options: Options{AsyncDelay: time.Millisecond}})
	relay, err := NewRelay(x.cache, x.box,
		&RelayOptions{Poll: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	x.check(err)
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{Key: keyOf("foreign", i), Inserting: true}
	}
	x.check(x.box.Put(t.Context(), items...))
	began := time.Now()
	x.running(relay, "all others were fresh in time", func() bool {
		if relay.Stats().Unknown < int64(n) {
			return false
		}
		t.Logf("%d items were tried within %v", n, time.Since(began))
		for i := range 5 {
			before, began := relay.Stats().Unknown, time.Now()
			x.reads([]string{"old", "new 0", "new 1", "new 2", "new 3"}[i])
			x.check(x.At(Async).Update(t.Context(), set(1, fmt.Sprint("new ", i)), x.rows.Key(1)))
			testenv.Eventually(t, "the key is fresh", func() bool {
				v, err := x.rows.Get(t.Context(), 1)
				x.check(err)
				return v == fmt.Sprint("new ", i)
			})
			took := time.Since(began)
			tried := relay.Stats().Unknown - before
			t.Logf("fresh after %v; %d others were tried", took, tried)
			if testenv.Accepting && took > 2*time.Second {
				t.Errorf("fresh after %v", took)
			}
			if most := 600 + int64(took.Seconds()*450); i > 0 && tried > most {
				// first come those that have become due in the first round
				t.Errorf("%d others were tried, want at most %d", tried, most)
			}
		}
		return true
	})
	if s := relay.Stats(); s.Alerts != 1 {
		t.Errorf("%+v", s)
	}
}

// startWith starts a relay whose cache has all loaders.
func (s *station) startWith() (*relayCache, *Relay) {
	s.Helper()
	own := &station{T: s.T, cache: &relayCache{}, queue: s.queue, began: s.began, logs: s.logs}
	r, stop := own.start(RelayOptions{})
	s.stops = append(s.stops, stop)
	return own.cache, r
}

// An item comes to the one of three relays that has its loader. Each time chance says which relay
// claims it: most items are there after a few times, and one of them may take long.
func TestRelayThatHasTheLoader(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.lacks = "foreign"
		s.start(RelayOptions{})
		s.start(RelayOptions{})
		_, has := s.startWith()
		for n := range 100 {
			s.put(Item{Key: keyOf("foreign", n), Inserting: true})
		}
		s.at(30 * time.Second)
		if done := has.Stats().Done; done < 50 {
			s.Errorf("%d of 100 after half a minute", done)
		}
		s.drained(2 * time.Hour)
		if has.Stats().Done != 100 {
			s.Errorf("%+v", has.Stats())
		}
	})
}

// Redis is out when such an item comes first: its key is invalidated when it is back.
func TestRelayWithoutTheLoaderNorRedis(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.lacks = "foreign"
		s.cache.fail(noRedis)
		r, _ := s.start(RelayOptions{})
		s.put(Item{Key: keyOf("foreign", 1), Inserting: true})
		s.at(time.Minute)
		if st := r.Stats(); !st.Out || st.Alerts != 1 {
			s.Errorf("%+v", st)
		}
		s.cache.fail(nil)
		s.at(time.Minute + 3*time.Second)
		s.done(keyOf("foreign", 1), time.Minute+2*time.Second)
	})
}

// without is a writer, and a relay, of a program that has no loaders.
func (x *world) without() (*Writer, *Relay) {
	x.t.Helper()
	cache := x.newCache(x.server.Client(x.t), cacheaside.Options{MemoryBytes: -1})
	w, err := NewWriter(x.writes, cache, &Options{Queue: x.box, Level: Async, AsyncDelay: x.options.AsyncDelay,
		NoRelay: true})
	x.check(err)
	x.t.Cleanup(func() { w.Close() })
	w.grace = x.grace
	r, err := NewRelay(cache, x.box, &RelayOptions{Poll: 10 * time.Millisecond})
	x.check(err)
	return w, r
}

// running runs a relay until f.
func (x *world) running(r *Relay, what string, f func() bool) {
	x.t.Helper()
	ctx, stop := context.WithCancel(x.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	x.eventually(what, f)
	stop()
	x.check(testenv.Receive(x.t, "the end of a relay", ended))
}

// TestInsertByOthers: a row that a program without the loader has inserted, or whose intent a relay
// without it has claimed, is found in the end.
func TestInsertByOthers(t *testing.T) {
	engines := []testenv.Engine{"", testenv.MariaDB}
	if testenv.Accepting {
		engines = append(engines, testenv.MySQL, testenv.PostgreSQL)
	}
	for _, e := range engines {
		t.Run(cmp.Or(string(e), "sqlite"), func(t *testing.T) {
			x := start(t, setup{engine: e, filter: items})
			writer, relay := x.without()
			id := 10
			for name, write := range map[string]func() error{
				"a writer that has the loader": func() error { return x.At(Async).Update(t.Context(), insert(id, "new"), x.rows.Key(id)) },
				"a writer that has not":        func() error { return writer.Update(t.Context(), insert(id, "new"), x.rows.Key(id)) },
				"a transaction of one's own": func() error {
					tx, err := x.admin.Beginx()
					x.check(err)
					_, err = tx.Exec(tx.Rebind("INSERT INTO item VALUES (?, 'new')"), id)
					return errors.Join(err, writer.At(Outbox).Enqueue(t.Context(), tx, x.rows.Key(id)), tx.Commit())
				},
			} {
				id++
				if _, err := x.other.Get(t.Context(), id); !errors.Is(err, cacheaside.ErrNotFound) {
					t.Fatal(err)
				}
				before := relay.Stats()
				x.check(write())
				x.running(relay, "the relay without the loader has had it", func() bool {
					now := relay.Stats()
					return now.Unknown > before.Unknown || now.Done > before.Done
				})
				if n := x.intents(); n != 1 {
					t.Errorf("%s: %d rows in the outbox", name, n)
				}
				x.invalidated()
				if v, err := x.other.Get(t.Context(), id); v != "new" || err != nil {
					t.Errorf("%s: %q, %v", name, v, err)
				}
			}
			x.check(writer.Update(t.Context(), set(1, "newest"), x.rows.Key(1).Existing())) // for any relay
			x.running(relay, "the outbox is empty", func() bool { return x.intents() == 0 })
			x.otherReads("newest")
		})
	}
}

// TestAdmitOfItems: which items are for a relay that has the loader.
func TestAdmitOfItems(t *testing.T) {
	x := start(t, setup{filter: items})
	plain, err := cacheaside.NewLoader(x.cache, "plain", x.load, nil)
	x.check(err)
	keys := []cacheaside.Key{x.rows.Key(1), x.rows.Key(1).Existing(), plain.Key(1), x.rows.AllKeys(),
		{Loader: "item", Text: "g", Group: true}, {Loader: "foreign", Text: "1"}, {Loader: "foreign", Text: "g", Group: true}}
	for _, byRelay := range []bool{false, true} {
		var got []bool
		for _, i := range x.outboxItems(Outbox, keys, byRelay) {
			got = append(got, i.Inserting)
		}
		if want := []bool{true, false, false, false, false, byRelay, false}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// Any relay invalidates a group. No filter and no load function is asked for it, also if its item
// says so.
func TestRelayGroup(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.lacks = "foreign"
		r, _ := s.start(RelayOptions{})
		for n, loader := range []string{"user", "foreign"} {
			s.put(Item{Key: cacheaside.Key{Loader: loader, Text: fmt.Sprint(relayPrivate, n), Group: true},
				Inserting: true,
				Reload:    true})
		}
		s.at(time.Second)
		if st := r.Stats(); st.Done != 2 || st.Unknown != 0 || st.Failed != 0 {
			s.Errorf("%+v", st)
		}
		for n := range 2 {
			for op, want := range map[string]int{"invalidate": 1, "committed": 0, "refresh": 0} {
				if got := s.cache.times(op, fmt.Sprint(relayPrivate, n), s.began); len(got) != want {
					s.Errorf("%s of group %d: %d times", op, n, len(got))
				}
			}
		}
	})
}
