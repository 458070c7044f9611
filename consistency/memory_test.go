package consistency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
)

func TestMemoryQueue(t *testing.T) {
	queuetest.Run(t, queuetest.Backend{New: func(_ testing.TB, n int) []consistency.Queue {
		q, all := consistency.NewMemoryQueue(0), []consistency.Queue(nil)
		for range n {
			all = append(all, q)
		}
		return all
	}})
}

// memory is a MemoryQueue in a bubble.
type memory struct {
	testing.TB
	*consistency.MemoryQueue
	began time.Time
}

func inMemory(t *testing.T, limit int, test func(q memory)) {
	synctest.Test(t, func(t *testing.T) {
		test(memory{t, consistency.NewMemoryQueue(limit), time.Now()})
	})
}

func userKey(n int) cacheaside.Key { return cacheaside.Key{Loader: "user", Text: fmt.Sprint(n)} }

func (m memory) put(items ...consistency.Item) {
	m.Helper()
	if err := m.Put(m.Context(), items...); err != nil {
		m.Fatal(err)
	}
}

func (m memory) claim() []consistency.Item {
	m.Helper()
	got, err := m.Claim(m.Context(), 1000, time.Hour)
	if err != nil {
		m.Fatal(err)
	}
	return got
}

// next waits for the next item, which must be due then, and claims it.
func (m memory) next(due time.Duration) consistency.Item {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 24*time.Hour)
	defer cancel()
	m.Wait(ctx)
	if at := time.Since(m.began); at != due {
		m.Fatalf("due after %v, want %v", at, due)
	}
	got := m.claim()
	if len(got) != 1 {
		m.Fatalf("claimed %d items, want 1", len(got))
	}
	return got[0]
}

func (m memory) done(item consistency.Item) {
	m.Helper()
	if err := m.Done(m.Context(), item); err != nil {
		m.Fatal(err)
	}
}

func (m memory) later(item consistency.Item, after time.Duration) {
	m.Helper()
	item.After, item.Again = after, 0
	if err := m.Later(m.Context(), item); err != nil {
		m.Fatal(err)
	}
}

func (m memory) holds(items int) {
	m.Helper()
	d, err := m.Depth(m.Context())
	if err != nil || d.Items != items {
		m.Fatalf("%d items, %v, want %d", d.Items, err, items)
	}
}

// A key that is put again and again waits as one entry, and is delivered twice: when its first item
// is due, and when its last one is.
func TestMemoryQueueTakesTogether(t *testing.T) {
	inMemory(t, 0, func(q memory) {
		for n := range 1000 {
			q.put(consistency.Item{Key: userKey(1), After: 2 * time.Second, Inserting: n == 7},
				consistency.Item{Key: userKey(1), Reload: true})
			time.Sleep(time.Millisecond)
			q.holds(2)
		}
		q.done(q.claim()[0]) // the one that is reloaded is other work
		got := q.next(2 * time.Second)
		if want := 999 * time.Millisecond; got.Again != want { // until the last is due
			q.Errorf("again after %v, want %v", got.Again, want)
		}
		if got.Age != 2*time.Second {
			q.Errorf("%v old, counted from the first", got.Age)
		}
		if !got.Inserting {
			q.Error("the item has lost its Inserting flag")
		}
		q.done(got)
		q.holds(0)
	})
}

func TestMemoryQueueAdoptsTheLaterOfTwo(t *testing.T) {
	s := time.Second
	for _, c := range []struct{ first, again, second, again2, due, wantAgain time.Duration }{
		{0, 0, 0, 5 * s, 0, 5 * s},
		{0, 5 * s, 0, 0, 0, 5 * s},
		{0, 0, 5 * s, 0, 0, 5 * s}, // as the commit of the second may come that late
		{5 * s, 0, 0, 0, 0, 5 * s},
		{2 * s, 2 * s, 3 * s, 4 * s, 2 * s, 5 * s},
		{3 * s, 0, 3 * s, 0, 3 * s, 0},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inMemory(t, 0, func(q memory) {
				q.put(consistency.Item{Key: userKey(1), After: c.first, Again: c.again},
					consistency.Item{Key: userKey(1), After: c.second, Again: c.again2})
				q.holds(1)
				if got := q.next(c.due); got.Again != c.wantAgain {
					q.Errorf("again after %v, want %v", got.Again, c.wantAgain)
				}
			})
		})
	}
}

// Items that became due during an outage are all done with the first delivery: the key does not
// come again later. The same holds after a full queue has replaced keys by whole loaders.
func TestMemoryQueueDoesTheOverdueOnce(t *testing.T) {
	for limit, keys := range map[int]int{0: 1, 10: 100} {
		inMemory(t, limit, func(q memory) {
			for n := range 300 {
				q.put(consistency.Item{Key: userKey(n % keys)})
				time.Sleep(time.Second)
			}
			for _, got := range q.claim() {
				if got.Again != 0 {
					q.Errorf("again after %v", got.Again)
				}
				q.done(got)
			}
			q.holds(0)
			// what is to be done twice is, though it is late
			q.put(consistency.Item{Key: userKey(1), Again: 5 * time.Second})
			time.Sleep(time.Minute)
			q.put(consistency.Item{Key: userKey(1)})
			if got := q.claim()[0]; got.Again != 5*time.Second {
				q.Errorf("again after %v", got.Again)
			}
		})
	}
}

// An item that is put while its key is claimed belongs to a later change: it is delivered after the
// claim, however the claim ends.
func TestMemoryQueuePutWhileClaimed(t *testing.T) {
	for _, end := range []string{"done", "later", "lost"} {
		t.Run(end, func(t *testing.T) {
			inMemory(t, 0, func(q memory) {
				q.put(consistency.Item{Key: userKey(1)})
				first := q.next(0)
				q.put(consistency.Item{Key: userKey(1)})
				q.put(consistency.Item{Key: userKey(1)})
				switch end {
				case "done":
					q.done(first)
				case "later":
					first.Attempts = 3
					q.later(first, 0)
				}
				second := q.next(0)
				if second.ID == first.ID {
					q.Error("the same again")
				}
				if end == "later" && second.Attempts != 3 {
					q.Errorf("%d attempts, want 3", second.Attempts)
				}
				q.done(second)
				if end == "lost" {
					q.done(q.next(time.Hour))
				}
				q.holds(0)
			})
		})
	}
}

// A writer that has put one of two items that are taken together does not know that the other is
// done.
func TestMemoryQueueDoneOfOneOfTwo(t *testing.T) {
	inMemory(t, 0, func(q memory) {
		a, b := consistency.Item{ID: "a", Key: userKey(1)}, consistency.Item{ID: "b", Key: userKey(1)}
		for _, done := range []consistency.Item{a, b} {
			q.put(a, b)
			q.done(done)
			q.done(q.next(0))
		}
		q.holds(0)
	})
}

// A full queue forgets no key: those of the loader with most of them become the whole loader.
func TestMemoryQueueFull(t *testing.T) {
	inMemory(t, 100, func(q memory) {
		q.put(consistency.Item{Key: cacheaside.Key{Loader: "order", All: true}})
		for n := range 40 {
			q.put(consistency.Item{Key: cacheaside.Key{Loader: "order", Text: fmt.Sprint(n)}})
		}
		claimed, err := q.Claim(q.Context(), 5, time.Hour)
		if err != nil {
			q.Fatal(err)
		}
		for n := range 1000 {
			q.put(consistency.Item{Key: userKey(n), After: time.Duration(n) * time.Second, Again: time.Minute,
				Reload: n%2 == 0})
			if d, _ := q.Depth(q.Context()); d.Items > 100 {
				q.Fatalf("%d items", d.Items)
			}
		}
		told, orders := map[cacheaside.Key]time.Duration{}, 0
		for _, i := range append(q.claim(), claimed...) {
			if i.Key.Loader == "order" {
				orders++
			}
			told[i.Key] = i.Again
		}
		if orders != 41 {
			q.Errorf("%d of the 41 others are left", orders)
		}
		all := cacheaside.Key{Loader: "user", All: true}
		last, replaced := told[all]
		if !replaced || q.Collapsed() < 900 {
			q.Fatalf("%d keys were replaced by %v", q.Collapsed(), told)
		}
		if want := time.Duration(q.Collapsed())*time.Second + 59*time.Second; last != want {
			q.Errorf("again after %v, want %v, when the last of %d is due", last, want, q.Collapsed())
		}
		time.Sleep(time.Hour - time.Second) // the claims have not run out
		for _, i := range q.claim() {
			told[i.Key] = 0
		}
		for n := int(q.Collapsed()); n < 1000; n++ {
			if _, kept := told[userKey(n)]; !kept {
				q.Errorf("user %d is lost", n)
			}
		}
	})
}

// Random puts, claims, completions and returns in a queue that is too small: each key, or its
// loader, is claimed after its last put, once that is due.
func TestMemoryQueueForgetsNothing(t *testing.T) {
	inMemory(t, 20, func(q memory) {
		type state struct{ wanted, done time.Time }
		keys := map[cacheaside.Key]*state{}
		mark := func(k cacheaside.Key) {
			for have, s := range keys {
				if have == k || k.All && have.Loader == k.Loader {
					s.done = time.Now()
				}
			}
		}
		var held []consistency.Item
		work := func(most int) {
			got, err := q.Claim(q.Context(), most, time.Duration(1+rand.IntN(3))*time.Second)
			if err != nil {
				q.Fatal(err)
			}
			for _, i := range got {
				mark(i.Key) // invalidated, now
				held = append(held, i)
			}
			for len(held) > rand.IntN(5) {
				i := held[0]
				held = held[1:]
				switch n := rand.IntN(10); {
				case i.Again > 0:
					q.later(i, i.Again)
				case n == 0:
					q.later(i, time.Duration(rand.IntN(1000))*time.Millisecond)
				case n == 1: // whose process was killed
				default:
					q.done(i)
				}
			}
		}
		for range 5000 {
			k := cacheaside.Key{Loader: fmt.Sprint("l", rand.IntN(3)), Text: fmt.Sprint(rand.IntN(30)),
				Group: rand.IntN(4) == 0}
			i := consistency.Item{Key: k, After: time.Duration(max(0, rand.IntN(2000)-1000)) * time.Millisecond,
				Again: time.Duration(max(0, rand.IntN(2000)-1000)) * time.Millisecond}
			if keys[k] == nil {
				keys[k] = &state{}
			}
			if last := time.Now().Add(i.After + i.Again); last.After(keys[k].wanted) {
				keys[k].wanted = last
			}
			q.put(i)
			work(rand.IntN(3))
			if rand.IntN(3) == 0 {
				time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
			}
		}
		for range 20 {
			time.Sleep(time.Second)
			work(1000)
		}
		for k, s := range keys {
			if s.done.Before(s.wanted) {
				q.Errorf("%v was last done %v too early", k, s.wanted.Sub(s.done))
			}
		}
		if q.Collapsed() == 0 {
			q.Error("the queue was never full")
		}
	})
}

func TestMemoryQueueWaits(t *testing.T) {
	inMemory(t, 0, func(q memory) {
		ctx, cancel := context.WithTimeout(q.Context(), time.Minute)
		defer cancel()
		q.Wait(ctx) // for nothing
		if at := time.Since(q.began); at != time.Minute {
			q.Fatalf("waited for %v", at)
		}
		go func() {
			time.Sleep(time.Second)
			q.put(consistency.Item{Key: userKey(1), After: time.Hour})
			time.Sleep(time.Second)
			q.put(consistency.Item{Key: userKey(2), After: time.Second})
		}()
		got := q.next(time.Minute + 3*time.Second)
		go func() {
			time.Sleep(time.Second)
			q.later(got, time.Second)
		}()
		q.next(time.Minute + 5*time.Second)
	})
}

func TestMemoryQueueBadInput(t *testing.T) {
	inMemory(t, 0, func(q memory) {
		if err := q.Put(q.Context(), consistency.Item{Key: userKey(1)},
			consistency.Item{Key: cacheaside.Key{Loader: "a:b"}}); err == nil {
			q.Error("put a key that is none")
		}
		q.holds(0)
		if _, err := q.Claim(q.Context(), 1, 0); err == nil {
			q.Error("claimed for no time")
		}
	})
}

// Items of one group are merged, but not with those of the key of the same text. When the queue is
// full, groups become the whole loader as keys do.
func TestMemoryQueueGroups(t *testing.T) {
	inMemory(t, 10, func(q memory) {
		group := func(n int) cacheaside.Key {
			return cacheaside.Key{Loader: "user", Text: fmt.Sprint(n), Group: true}
		}
		q.put(consistency.Item{Key: group(1)}, consistency.Item{Key: userKey(1)}, consistency.Item{Key: group(1)})
		q.holds(2)
		for n := range 5 {
			q.put(consistency.Item{Key: group(n)}, consistency.Item{Key: userKey(n)},
				consistency.Item{Key: cacheaside.Key{Loader: "order", Text: fmt.Sprint(n % 2)}})
		}
		keys := map[cacheaside.Key]bool{}
		for _, i := range q.claim() {
			keys[i.Key] = true
		}
		if !keys[cacheaside.Key{Loader: "user", All: true}] || keys[group(1)] || keys[userKey(1)] {
			q.Errorf("a full queue has %v", keys)
		}
	})
}
