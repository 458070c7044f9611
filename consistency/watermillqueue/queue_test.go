package watermillqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
	"github.com/cacheaside/cacheaside/consistency/watermillqueue"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestChannel(t *testing.T) {
	queuetest.Run(t, queuetest.Backend{Unordered: true, NoDepth: true, ByDelivery: true,
		New: func(t testing.TB, n int) []consistency.Queue {
			c := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
			return same(listening(t, open(t, c, c, "invalidations", 1)), n)
		}})
}

// bubble runs a test on a queue in a fake broker that gives one message at a time, in fake time.
func bubble(t *testing.T, test func(t *testing.T, f *fake, q *watermillqueue.Queue)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		test(t, f, open(t, f, f, "due", 1))
	})
}

func item(text string) consistency.Item {
	return consistency.Item{Key: cacheaside.Key{Loader: "user", Text: text}}
}

// after claims what is due after d, when all has come to rest.
func after(t *testing.T, q *watermillqueue.Queue, d time.Duration) []consistency.Item {
	t.Helper()
	_, err := q.Claim(t.Context(), 0, time.Minute)
	check(t, err)
	time.Sleep(d)
	synctest.Wait()
	items, err := q.Claim(t.Context(), 100, time.Minute)
	check(t, err)
	return items
}

// wants claims the items due after d, and asserts that their keys have these texts in this order.
func wants(t *testing.T, q *watermillqueue.Queue, d time.Duration, texts ...string) []consistency.Item {
	t.Helper()
	items := after(t, q, d)
	var got []string
	for _, i := range items {
		got = append(got, i.Key.Text)
	}
	if fmt.Sprint(got) != fmt.Sprint(texts) {
		t.Fatalf("claimed %q, want %q", got, texts)
	}
	return items
}

// Waiting items do not delay due ones.
func TestWaitingIsApart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		waiting := item("waiting")
		waiting.After = time.Hour
		check(t, q.Put(t.Context(), waiting))
		check(t, q.Put(t.Context(), item("due")))
		check(t, q.Done(t.Context(), wants(t, q, 0, "due")...))
		check(t, q.Done(t.Context(), wants(t, q, time.Hour, "waiting")...))
		synctest.Wait()
		if n := f.left(); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// What Later could not publish is kept, and acknowledged only when it could.
func TestLaterRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		check(t, q.Put(t.Context(), item("1")))
		got := wants(t, q, 0, "1")
		got[0].After, got[0].Attempts = time.Minute, 1
		f.set(func(f *fake) { f.refuse = true })
		if err := q.Later(t.Context(), got...); !errors.Is(err, errRefused) {
			t.Errorf("Later: %v", err)
		}
		synctest.Wait()
		if f.left() != 1 {
			t.Fatal("it is gone from the broker")
		}
		wants(t, q, 30*time.Second)
		got = wants(t, q, 30*time.Second, "1")
		if got[0].Attempts != 1 {
			t.Errorf("%d attempts, want 1", got[0].Attempts)
		}
		f.set(func(f *fake) { f.refuse = false })
		check(t, q.Later(t.Context(), got...))
		synctest.Wait()
		if f.left() != 1 {
			t.Fatalf("%d messages, want the new one", f.left())
		}
		check(t, q.Done(t.Context(), wants(t, q, time.Minute, "1")...))
	})
}

// Put says so when the broker has not taken an item, and does not wait for longer than its ctx.
func TestPutRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		f.set(func(f *fake) { f.refuse = true })
		if err := q.Put(t.Context(), item("1")); !errors.Is(err, errRefused) {
			t.Errorf("refused: %v", err)
		}
		hang := make(chan struct{})
		f.set(func(f *fake) { f.refuse, f.hang = false, hang })
		for range 100 { // more than are published at once
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := q.Put(ctx, item("2")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("hanging: %v", err)
			}
			cancel()
		}
		close(hang)
		synctest.Wait()
		if n := f.left(); n < 1 || n > 64 {
			t.Errorf("%d were published after all", n)
		}
	})
}

// What the broker gives to others after a time is not held any longer than that.
func TestTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		check(t, q.Put(t.Context(), item("1")))
		late := wants(t, q, 0, "1")
		f.takeBack("due")
		synctest.Wait() // it is given again
		second := wants(t, q, 0, "1")
		check(t, q.Done(t.Context(), late...))
		synctest.Wait()
		if f.left() != 1 {
			t.Error("an acknowledgement of a redelivered message counted")
		}
		for range 10 { // claims that are never ended, as when Redis is out
			f.takeBack("due")
			synctest.Wait()
			second = after(t, q, 2*time.Minute)
		}
		d, err := q.Depth(t.Context())
		check(t, err)
		if d.Items != 1 || len(second) != 1 || q.Stats().TakenBack < 10 {
			t.Errorf("%d held, %d claimed, %+v", d.Items, len(second), q.Stats())
		}
		check(t, q.Done(t.Context(), second...))
		synctest.Wait()
		if f.left() != 0 {
			t.Error("it was not acknowledged")
		}
	})
}

// A message that is none is taken out, and counted.
func TestMalformed(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		for _, text := range []string{"", "null", "{", "42", `{"v":2,"id":"a","loader":"user","at":0,"created":0}`,
			`{"v":1,"id":"a","loader":"no name"}`, `{"v":1,"id":"a","loader":"user","after":-1}`,
			`{"v":1,"id":"a","loader":"user","after":86400000000001}`, `{"v":1,"loader":"user"}`,
			`{"v":1,"id":"a","loader":"user","key":"%"}`, strings.Repeat(" ", 1<<20) +
				`{"v":1,"id":"a","loader":"user"}`} {
			check(t, f.Publish("due", message.NewMessage(text, []byte(text))))
		}
		check(t, q.Put(t.Context(), item("1")))
		check(t, q.Done(t.Context(), wants(t, q, 0, "1")...))
		if s := q.Stats(); s.Malformed != 11 {
			t.Errorf("%+v, want 11 malformed", s)
		}
	})
}

// A clock that is ahead, or behind, does not have an item wait for longer than it was to.
func TestClocks(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		for _, off := range []time.Duration{time.Hour, 100 * 365 * 24 * time.Hour, -time.Hour} {
			at := time.Now().Add(off).UnixNano()
			text := fmt.Sprintf(`{"v":1,"id":"a","loader":"user","key":"MQ==","after":%d,"at":%d,"created":%d}`,
				time.Minute, at, at)
			check(t, f.Publish("due-later", message.NewMessage(fmt.Sprint(off), []byte(text))))
			got := wants(t, q, time.Minute, "1")
			if got[0].Age < 0 {
				t.Errorf("age %v", got[0].Age)
			}
			check(t, q.Done(t.Context(), got...))
		}
	})
}

// When a subscription has ended, or cannot be made, Claim returns an error, and the next Claim
// subscribes again.
func TestDeaf(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		f.set(func(f *fake) { f.cut = true })
		check(t, q.Put(t.Context(), item("1")))
		_, err := q.Claim(t.Context(), 1, time.Minute)
		check(t, err)
		synctest.Wait()
		if _, err = q.Claim(t.Context(), 1, time.Minute); err == nil || !strings.Contains(err.Error(), `"due-later"`) {
			t.Errorf("cannot subscribe to the topics: %v", err)
		}
		began := time.Now()
		q.Wait(t.Context())
		if waited := time.Since(began); waited == 0 || waited > time.Second {
			t.Errorf("waited %v", waited)
		}
		f.set(func(f *fake) { f.cut = false })
		time.Sleep(2 * time.Second)
		check(t, q.Done(t.Context(), wants(t, q, 0, "1")...))
	})
}

// Wait returns when an item is due: after a Put, by time, or at the end of a claim.
func TestWait(t *testing.T) {
	bubble(t, func(t *testing.T, _ *fake, q *watermillqueue.Queue) {
		waits := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			q.Wait(t.Context())
			if waited := time.Since(began); waited != want {
				t.Errorf("waited %v, want %v", waited, want)
			}
		}
		time.AfterFunc(time.Second, func() { q.Put(t.Context(), item("1")) })
		waits(time.Second)
		waits(0)
		got := wants(t, q, 0, "1")
		waits(time.Minute)
		got[0].After = 3 * time.Second
		check(t, q.Later(t.Context(), got...))
		waits(3 * time.Second)
		check(t, q.Done(t.Context(), wants(t, q, 0, "1")...))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		q.Wait(ctx)
		if ctx.Err() == nil {
			t.Error("there was nothing to wait for")
		}
	})
}

// A process holds a bounded number of messages: the rest stays in the broker.
func TestHeldIsBounded(t *testing.T) {
	c := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	q := listening(t, open(t, c, c, "invalidations", 1))
	items := make([]consistency.Item, 10_500)
	for i := range items {
		items[i] = item(fmt.Sprint(i))
	}
	check(t, q.Put(t.Context(), items...))
	seen := map[string]bool{}
	full := false
	for deadline := time.Now().Add(testenv.Hang); len(seen) < len(items); time.Sleep(time.Millisecond) {
		d, err := q.Depth(t.Context())
		check(t, err)
		if d.Items > 10_000 {
			t.Fatalf("%d are held", d.Items)
		}
		if d.Items < min(len(items)-len(seen), 9_999) && time.Now().Before(deadline) {
			continue
		}
		if !full {
			full = true
			time.Sleep(300 * time.Millisecond) // so that more of them come, if they may
			continue
		}
		got, err := q.Claim(t.Context(), 1000, time.Hour)
		check(t, err)
		for _, i := range got {
			seen[i.Key.Text] = true
		}
		check(t, q.Done(t.Context(), got...))
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d", len(seen), len(items))
		}
	}
}

// What is held comes again elsewhere when a Queue is closed, and a closed one does nothing.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, q *watermillqueue.Queue) {
		check(t, q.Put(t.Context(), item("1")))
		got := wants(t, q, 0, "1")
		check(t, q.Close())
		check(t, q.Done(t.Context(), got...))
		if err := q.Put(t.Context(), item("2")); err == nil {
			t.Error("Put after Close: nil")
		}
		if _, err := q.Claim(t.Context(), 1, time.Minute); err == nil {
			t.Error("Claim after Close: nil")
		}
		q.Wait(t.Context())
		if f.left() != 1 {
			t.Errorf("%d messages, want the one that was held", f.left())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	f := newFake(t)
	for name, err := range map[string]error{
		"publisher":     second(watermillqueue.New(nil, f, "due", nil)),
		"topic":         second(watermillqueue.New(f, f, "", nil)),
		"subscriptions": second(watermillqueue.New(f, f, "due", &watermillqueue.Options{Subscriptions: -1})),
	} {
		if err == nil {
			t.Errorf("%s: nil", name)
		}
	}
	q := open(t, f, nil, "due", 0)
	check(t, q.Put(t.Context(), item("1")))
	if _, err := q.Claim(t.Context(), 1, time.Minute); err == nil {
		t.Error("Claim without a subscriber: nil")
	}
	for name, i := range map[string]consistency.Item{
		"loader": {Key: cacheaside.Key{Loader: "no name"}},
		"after":  {Key: cacheaside.Key{Loader: "user"}, After: 25 * time.Hour},
		"long":   {Key: cacheaside.Key{Loader: "user", Text: strings.Repeat("k", 1<<20)}},
	} {
		if err := q.Put(t.Context(), item("2"), i); err == nil || f.left() != 1 {
			t.Errorf("%s: %v, %d messages", name, err, f.left())
		}
	}
}

func second(_ *watermillqueue.Queue, err error) error { return err }
