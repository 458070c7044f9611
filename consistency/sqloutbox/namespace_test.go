package sqloutbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// application is a program with a cache, a Writer and a Relay of its own.
type application struct {
	*consistency.Writer
	cache *cacheaside.Cache
	rows  *cacheaside.Loader[int, string]
}

// application makes one, with an outbox in the table that all of them share.
func (t *outboxTest) application(server *testenv.Redis, prefix string) *application {
	t.Helper()
	a := &application{}
	var err error
	a.cache, err = cacheaside.New(server.Client(t.TB),
		&cacheaside.Options{Prefix: prefix, MemoryBytes: -1, RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang})
	t.check(err)
	t.Cleanup(func() { a.cache.Close() })
	a.rows, err = cacheaside.NewLoader(a.cache, "item", func(ctx context.Context, id int) (v string, err error) {
		err = t.db.GetContext(ctx, &v, t.db.Rebind("SELECT v FROM item WHERE id = ?"), id)
		return v, err
	}, &cacheaside.LoaderOptions{TTL: time.Hour, EarlyRefresh: -1})
	t.check(err)
	box, err := New(t.db, t.text.dialect, nil)
	t.check(err)
	a.Writer, err = consistency.NewWriter(t.db, a.cache, &consistency.Options{Level: consistency.Async,
		AsyncDelay: time.Millisecond, Queue: box, Relay: &consistency.RelayOptions{Poll: time.Millisecond}})
	t.check(err)
	t.Cleanup(func() { a.Close() })
	return a
}

// TestTwoApplications: each on a table that both use does its own rows, and only those.
func TestTwoApplications(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		t.exec(t.db, "CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100))")
		t.exec(t.db, "INSERT INTO item VALUES (1, 'old')")
		server := testenv.SharedRedis(t.TB)
		all := []*application{t.application(server, "shop"), t.application(server, "crm")}
		const writes = 5
		for n := range writes {
			for _, a := range all {
				want := strings.Repeat("x", n+1)
				_, err := a.rows.Get(t.ctx(), 1)
				t.check(err)
				t.check(a.Update(t.ctx(), set(1, want), a.rows.Key(1)))
				testenv.Eventually(t.TB, "the cache is invalidated", func() bool {
					v, err := a.rows.Get(t.ctx(), 1)
					t.check(err)
					return v == want
				})
			}
		}
		for i, a := range all {
			testenv.Eventually(t.TB, "all is done", func() bool { return a.Stats().Relay.Done >= writes })
			if s := a.Stats().Relay; s.Done != writes {
				t.Errorf("relay %d has done %d items, not its own %d", i, s.Done, writes)
			}
		}
	})
}

// TestOutboxNamespaces: nothing of one is seen by an outbox that has another, but by one that only
// looks.
func TestOutboxNamespaces(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		of := func(namespace string) *Outbox {
			o, err := New(t.db, t.text.dialect, &Options{Namespace: namespace})
			t.check(err)
			return o
		}
		a, b, all := of("a"), of("b"), of("")
		late := consistency.Item{Key: textItem("a2").Key, After: time.Hour, Attempts: 1}
		t.check(a.Put(t.ctx(), textItem("a1"), late))
		late.Key.Text = "b2"
		t.check(b.Put(t.ctx(), textItem("b1"), late))
		t.check(b.Put(t.ctx(), textItem("b3")))

		for i, text := range []string{"b3", "b1", "a1"} {
			t.exec(t.db, fmt.Sprintf("UPDATE cacheaside_outbox SET due = due - %d WHERE text = %s", 100_000*(i+1),
				t.hex(text)))
		}

		count := func(o *Outbox, items, due int) {
			t.Helper()
			if d, err := o.Depth(t.ctx()); err != nil || d.Items != items || d.Due != due || d.Others != 0 {
				t.Errorf("%+v, %v: want %d items, %d due", d, err, items, due)
			}
		}
		count(a, 2, 1)
		count(b, 3, 2)
		depths, err := all.Depths(t.ctx())
		t.check(err)
		if len(depths) != 2 || depths["a"].Items != 2 || depths["b"].Items != 3 {
			t.Errorf("%+v", depths)
		}
		listed := func(o *Outbox, limit int, want ...string) {
			t.Helper()
			rows, err := o.List(t.ctx(), limit)
			t.check(err)
			var got []string
			for _, r := range rows {
				got = append(got, r.Key.Text)
				if r.Namespace != r.Key.Text[:1] {
					t.Errorf("%+v is said to be of %q", r.Key, r.Namespace)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("listed %q, want %q", got, want)
			}
		}
		listed(a, 10, "a1", "a2")
		listed(all, 10, "a1", "b1", "b3", "a2", "b2")
		listed(all, 2, "a1", "b1")

		retried := func(o *Outbox, want int64) {
			t.Helper()
			if n, err := o.RetryAll(t.ctx()); err != nil || n != want {
				t.Errorf("%d made due, want %d: %v", n, want, err)
			}
		}
		retried(a, 1)
		retried(all, 1)
		got := t.some(a, 10)
		t.same(got, "a1", "a2")
		t.check(a.Done(t.ctx(), got...))
		t.same(t.some(b, 10), "b1", "b2", "b3")
		count(a, 0, 0)

		for what, err := range map[string]error{
			"Put":   all.Put(t.ctx(), textItem("a")),
			"PutIn": all.PutIn(t.ctx(), t.db, textItem("a")),
			"Done":  all.Done(t.ctx(), textItem("a")),
			"Later": all.Later(t.ctx(), textItem("a")),
			"Claim": func() error { _, err := all.Claim(t.ctx(), 1, time.Hour); return err }(),
			"Depth": func() error { _, err := all.Depth(t.ctx()); return err }(),
		} {
			if err == nil || !strings.Contains(err.Error(), "sqloutbox.Options.Namespace") {
				t.Errorf("%s, without a namespace: %v", what, err)
			}
		}
	})
}

// TestSameID: an ID names an item of one namespace, in every call that takes it.
func TestSameID(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		of := func(namespace string) *Outbox {
			o, err := New(t.db, t.text.dialect, &Options{Namespace: namespace})
			t.check(err)
			return o
		}
		shop, crm, all := of("shop"), of("crm"), of("")
		item := textItem("x")
		item.ID, item.After = consistency.NewID(), time.Hour
		t.check(shop.Put(t.ctx(), item))
		tx := t.begin(t.db)
		t.check(crm.PutIn(t.ctx(), tx, item))
		t.check(tx.Commit())
		tx = t.begin(t.db)
		t.check(crm.PutIn(t.ctx(), tx, item)) // again
		t.check(tx.Commit())

		waits := func(o *Outbox, want bool) {
			t.Helper()
			rows, err := o.List(t.ctx(), 10)
			t.check(err)
			if len(rows) != 1 || rows[0].ID != item.ID || rows[0].After > time.Minute != want {
				t.Errorf("%+v", rows)
			}
		}
		waits(shop, true)
		waits(crm, true)
		if n, err := shop.Retry(t.ctx(), item.ID); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		waits(crm, true)
		got := t.some(shop, 10)
		t.same(got, "x")
		t.check(crm.Later(t.ctx(), item))
		t.same(t.some(shop, 10)) // it is claimed still
		t.check(shop.Later(t.ctx(), item))
		if n, err := all.Retry(t.ctx(), item.ID); n != 2 || err != nil {
			t.Errorf("%d of both, %v", n, err)
		}
		t.check(shop.Done(t.ctx(), item))
		waits(crm, false)
		t.same(t.some(crm, 10), "x")

		t.check(shop.Put(t.ctx(), item))
		t.exec(t.db, "UPDATE cacheaside_outbox SET due = due + 3600000000, created = created + 3600000000")
		if n, err := crm.repair(t.ctx(), crm.text.in("crm")); n != 1 || err != nil {
			t.Errorf("%d repaired, %v", n, err)
		}
		if r := rowOf(&outboxTest{TB: t.TB, Outbox: shop}, "x"); r.After < 90*time.Minute {
			t.Errorf("shop's waits for %v", r.After)
		}
	})
}

// TestBind: an outbox is of the first cache that a Writer or a Relay is made for, and of no other.
func TestBind(t *testing.T) {
	t.Parallel()
	box := outboxOnSQLite(t)
	cache := func(prefix string) *cacheaside.Cache {
		c, err := cacheaside.NewLocal(&cacheaside.Options{Prefix: prefix})
		box.check(err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	shop, crm, long := cache("shop"), cache("crm"), cache(strings.Repeat("p", 256))
	outbox := func(namespace string) *Outbox {
		o, err := New(box.db, SQLite, &Options{Namespace: namespace})
		box.check(err)
		return o
	}
	writer := func(c *cacheaside.Cache, q consistency.Queue) error {
		w, err := consistency.NewWriter(box.db, c, &consistency.Options{Queue: q, NoRelay: true})
		if err == nil {
			box.check(w.Close())
		}
		return err
	}
	relay := func(c *cacheaside.Cache, q consistency.Queue) error {
		_, err := consistency.NewRelay(c, q, nil)
		return err
	}
	for _, make := range []func(*cacheaside.Cache, consistency.Queue) error{writer, relay} {
		for _, again := range []func(*cacheaside.Cache, consistency.Queue) error{writer, relay} {
			o := outbox("")
			box.check(make(shop, o))
			box.check(again(shop, o))
			if err := again(crm, o); err == nil || !strings.Contains(err.Error(), `"shop"`) ||
				!strings.Contains(err.Error(), `"crm"`) {
				t.Errorf("for another cache: %v", err)
			}
			box.check(again(shop, struct{ *Outbox }{o}))
			if err := again(crm, struct{ *Outbox }{o}); err == nil {
				t.Error("for another cache, in a Queue of the user's")
			}
			if o.namespace() != "shop" {
				t.Errorf("it is of %q", o.namespace())
			}
		}
		if err := make(long, outbox("")); err == nil || !strings.Contains(err.Error(), "sqloutbox.Options.Namespace") {
			t.Errorf("a long prefix: %v", err)
		}
		fixed := outbox("both")
		for _, c := range []*cacheaside.Cache{shop, crm, long} {
			box.check(make(c, fixed))
		}
		if fixed.namespace() != "both" {
			t.Errorf("it is of %q", fixed.namespace())
		}
	}
	for _, bad := range []string{"a b", "x'", "ü", strings.Repeat("a", 256)} {
		if _, err := New(box.db, SQLite, &Options{Namespace: bad}); err == nil ||
			!strings.Contains(err.Error(), "Namespace") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestOthersFail: if the items of other namespaces cannot be counted, that fails once, and Depth
// succeeds until the next count.
func TestOthersFail(t *testing.T) {
	o := outboxOnSQLite(t)
	over, cancel := context.WithCancel(o.ctx())
	cancel()
	if _, err := o.countOthers(over, o.db); err == nil {
		t.Error("counted without a context")
	}
	if _, err := o.countOthers(over, o.db); err != nil {
		t.Errorf("counted again: %v", err)
	}
}

// TestUnclaimed: rows that no relay claims are counted, up to a bound, and reported once.
func TestUnclaimed(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		for _, name := range []string{"gone", "gone2", "well"} {
			o, err := New(t.db, t.text.dialect, &Options{Namespace: name})
			t.check(err)
			t.check(o.Put(t.ctx(), textItems(600)...))
		}
		for _, name := range []string{"gone", "gone2"} {
			t.exec(t.db, "UPDATE cacheaside_outbox SET due = due - 61000000 WHERE namespace = "+
				t.text.in(name).namespace)
		}
		t.check(t.Put(t.ctx(), textItem("own")))
		t.exec(t.db, "UPDATE cacheaside_outbox SET due = due - 61000000 WHERE namespace = "+t.mine().namespace)

		if d, err := t.Depth(t.ctx()); err != nil || d.Others != 1001 || d.Items != 1 {
			t.Fatalf("%+v, %v", d, err)
		}

		cache, err := cacheaside.NewLocal(nil)
		t.check(err)
		t.Cleanup(func() { cache.Close() })
		var told testenv.Log
		relay, err := consistency.NewRelay(cache, t.Outbox,
			&consistency.RelayOptions{Poll: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&told, nil))})
		t.check(err)
		ctx, stop := context.WithCancel(t.ctx())
		ended := make(chan error)
		go func() { ended <- relay.Run(ctx) }()
		again := func() {
			t.others.mu.Lock()
			t.others.next = time.Time{}
			t.others.mu.Unlock()
		}
		testenv.Eventually(t.TB, "it is seen", func() bool { return relay.Stats().Depth.Others == 1001 })
		testenv.Eventually(t.TB, "it is logged", func() bool {
			return strings.Count(told.String(), "no Relay claims") == 1
		})
		if strings.Count(told.String(), "[gone gone2]") != 1 {
			t.Errorf("logged: %s", told.String())
		}
		t.exec(t.db, "DELETE FROM cacheaside_outbox WHERE namespace = "+t.text.in("gone").namespace)
		again()
		testenv.Eventually(t.TB, "the rest is seen", func() bool { return relay.Stats().Depth.Others == 600 })
		t.exec(t.db, "DELETE FROM cacheaside_outbox WHERE namespace = "+t.text.in("gone2").namespace)
		again()
		testenv.Eventually(t.TB, "it is over",
			func() bool { return relay.Stats().Depth.Others == 0 && relay.Stats().Depth.Items == 0 })
		stop()
		t.check(<-ended)
		if n := strings.Count(told.String(), "no Relay claims"); n != 1 {
			t.Errorf("logged %d times: %s", n, told.String())
		}
		if s := relay.Stats(); s.Done != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		t.holds(0, "its own")
		if depths, err := t.Depths(t.ctx()); err != nil || depths["well"].Items != 600 {
			t.Error(depths, err)
		}
	})
}

// TestShownNames: namespaces are anything that is in the table.
func TestShownNames(t *testing.T) {
	t.Parallel()
	got := shownNames([]string{"shop", "", "a\nb", "\xff", "a b"})
	if want := []string{"shop", "none (put by a release without namespaces)", `"a\nb"`, `"\xff"`,
		`"a b"`}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
