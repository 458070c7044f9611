package queuetest

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// kept: Claim returns keys with any bytes, keys of whole loaders, groups, and all other fields of
// an item unchanged.
func kept(s *suite) {
	q := s.open()
	var every strings.Builder
	for b := range 256 {
		every.WriteByte(byte(b))
	}
	texts := []string{"", "42", "-1", " ", "NULL", "a'b\"c`d\\", "%s%d?;--", "\x00",
		"é\u2028\U0001F600", "Foo", "foo", "foo ", every.String(), strings.Repeat("k", 2000)}
	want := map[cacheaside.Key]consistency.Item{}
	var items []consistency.Item
	add := func(i consistency.Item) {
		want[i.Key] = i
		items = append(items, i)
	}
	for _, text := range texts {
		add(consistency.Item{Key: cacheaside.Key{Loader: "user", Version: "1", Text: text}})
	}
	add(consistency.Item{Key: cacheaside.Key{Loader: "user", Version: "v2.0-rc_1", Text: "42"}, Reload: true})
	add(consistency.Item{Key: cacheaside.Key{Loader: "User", Version: "1", Text: "42"}, Again: 90 * time.Minute})
	add(consistency.Item{Key: cacheaside.Key{Loader: "user", All: true}, Again: 1500 * time.Millisecond})
	add(consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "42", Group: true}, Again: time.Second})
	add(consistency.Item{Key: cacheaside.Key{Loader: "user", Text: every.String(), Group: true}})
	add(consistency.Item{Key: cacheaside.Key{Loader: "user", Version: "1", Text: "43"}, Inserting: true})
	longest := cacheaside.Key{Loader: strings.Repeat("l", 64), Version: strings.Repeat("v", 64), Text: "42"}
	add(consistency.Item{Key: longest, Reload: true, Again: time.Millisecond})
	s.check(q.Put(s.ctx(), items...))
	got := s.claim(q, len(items), long)
	for _, i := range got {
		w, ok := want[i.Key]
		if !ok || i.Again != w.Again || i.Reload != w.Reload || i.Inserting != w.Inserting || i.Attempts != 0 {
			s.Errorf("differs from the item that was put: %q, %+v", i.Key.Text, i)
		}
		delete(want, i.Key)
	}
	s.check(q.Done(s.ctx(), got...))
	s.empty(q)
}

// admits: Later preserves the field Inserting.
func admits(s *suite) {
	a, b := s.openTwo()
	admitted := item(1)
	admitted.Inserting = true
	s.check(a.Put(s.ctx(), admitted, item(2)))
	for range 3 {
		got := s.claim(b, 2, long)
		for i := range got {
			if got[i].Inserting != (got[i].Key.Text == "1") {
				s.Fatalf("%s: Inserting is %v", got[i].Key.Text, got[i].Inserting)
			}
			got[i].After, got[i].Attempts = 0, got[i].Attempts+1
		}
		s.check(b.Later(s.ctx(), got...))
	}
}

// names: an item without an ID gets a unique one, and an item with an ID keeps it. The caller's
// items are not changed.
func names(s *suite) {
	q := s.open()
	items := []consistency.Item{{Key: key(1)}, {Key: key(2)}, item(3)}
	s.check(q.Put(s.ctx(), items...))
	if items[0].ID != "" {
		s.Error("Put has changed the caller's item")
	}
	seen := map[string]bool{}
	for _, i := range s.claim(q, 3, long) {
		if i.ID == "" || i.Claim == "" || seen[i.ID] {
			s.Errorf("ID %q, claim %q of %s", i.ID, i.Claim, i.Key.Text)
		}
		if i.Key.Text == "3" && i.ID != item(3).ID && !s.b.ByDelivery {
			s.Errorf("ID %q, was put as %q", i.ID, item(3).ID)
		}
		seen[i.ID] = true
	}
}

// repeated: a repeated Put with the same IDs adds nothing and changes no item.
func repeated(s *suite) {
	a, b := s.openTwo()
	s.check(a.Put(s.ctx(), item(1), item(2)))
	s.check(a.Put(s.ctx(), item(1), item(2), item(3)))
	s.holds(a, 3)
	got := s.claim(b, 3, long)
	s.check(a.Put(s.ctx(), item(2), item(3), item(4), item(4)))
	s.same([]consistency.Item{s.one(a, long)}, "4")
	s.none(a, "claimed by b")
	got[0].After, got[0].Attempts = time.Hour, 3
	s.check(b.Later(s.ctx(), got[0]))
	s.check(a.Put(s.ctx(), item(1), item(2), item(3)))
	s.none(a, "far back, or claimed by b")
	s.holds(a, 4)
}

// nothing: calls without items do nothing.
func nothing(s *suite) {
	q := s.open()
	s.check(q.Put(s.ctx()))
	s.check(q.Done(s.ctx()))
	s.check(q.Later(s.ctx()))
	got, err := q.Claim(s.ctx(), 10, long)
	if got != nil || err != nil {
		s.Errorf("claimed %v, %v of nothing", got, err)
	}
	s.empty(q)
}

// large: batches may be larger than one database statement can be.
func large(s *suite) {
	n := cmp.Or(s.b.AtOnce, 2100)
	q := s.open()
	items := make([]consistency.Item, n)
	for i := range items {
		items[i] = item(i)
	}
	s.check(q.Put(s.ctx(), items...))
	s.holds(q, n)
	got := s.claim(q, n, long)
	seen := map[string]bool{}
	for i := range got {
		seen[got[i].Key.Text] = true
		got[i].After, got[i].Attempts = 0, i
	}
	if len(seen) != n {
		s.Fatalf("%d different items of %d", len(seen), n)
	}
	s.check(q.Later(s.ctx(), got...))
	attempts := map[string]int{}
	for _, i := range got {
		attempts[i.Key.Text] = i.Attempts
	}
	got = s.claim(q, n, long)
	for _, i := range got {
		if i.Attempts != attempts[i.Key.Text] {
			s.Fatalf("%d attempts, want %d", i.Attempts, attempts[i.Key.Text])
		}
	}
	s.check(q.Done(s.ctx(), got...))
	s.empty(q)
}

// cancelled: a call with a ctx that has ended does nothing and returns its error.
func cancelled(s *suite) {
	q := s.open()
	s.check(q.Put(s.ctx(), item(1)))
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	is := func(op string, err error) {
		s.Helper()
		if !errors.Is(err, context.Canceled) {
			s.Errorf("%s with a ctx that is cancelled: %v", op, err)
		}
	}
	is("Put", q.Put(ctx, item(2)))
	_, err := q.Claim(ctx, 10, long)
	is("Claim", err)
	got := s.one(q, long)
	s.same([]consistency.Item{got}, "1")
	is("Done", q.Done(ctx, got))
	got.After = 0
	is("Later", q.Later(ctx, got))
	s.none(q, "still claimed")
	if !s.b.NoDepth {
		_, err := q.Depth(ctx)
		is("Depth", err)
		s.holds(q, 1)
	}
	s.check(q.Done(s.ctx(), got))
	s.empty(q)
}

// depth: Depth counts the items in the queue, claimed or not, and those that are due.
func depth(s *suite) {
	a, b := s.openTwo()
	is := func(items, due int) consistency.Depth {
		s.Helper()
		d, err := b.Depth(s.ctx())
		s.check(err)
		if d.Items != items || d.Due != due {
			s.Errorf("%+v, want %d items, %d of them due", d, items, due)
		}
		return d
	}
	if d := is(0, 0); d.Oldest != 0 {
		s.Errorf("%v old, and empty", d.Oldest)
	}
	far := item(3)
	far.After = time.Hour
	began := time.Now()
	s.check(a.Put(s.ctx(), item(1), item(2), far))
	put := time.Now()
	time.Sleep(5 * clocks)
	low := time.Since(put)
	d := is(3, 2)
	if high := time.Since(began); d.Oldest < low-clocks || d.Oldest > high+clocks {
		s.Errorf("the oldest is %v old, from %v to %v was wanted", d.Oldest, low, high)
	}
	got := s.claim(a, 2, long)
	is(3, 0)
	got[0].After = 0
	s.check(a.Later(s.ctx(), got[0]))
	time.Sleep(clocks) // until the item is due by the queue's clock
	if d := is(3, 1); d.Oldest < low {
		s.Errorf("the oldest is %v old after a Later, was %v", d.Oldest, low)
	}
	s.check(a.Done(s.ctx(), got[1]))
	is(2, 1)
}
