package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var unsettled = &RebuildOptions{Settle: -1}

// shared is a process's filter of a set that others have, too.
func shared(t testing.TB, rdb redis.UniversalClient, staleness time.Duration) *Local {
	t.Helper()
	l, err := NewShared(rdb, "users", 1000, 0.001, &Options{Timeout: 5 * time.Second, MaxStaleness: staleness})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func has(g *localGeneration, key string) bool {
	h := hashOf(key)
	return g.has(&h)
}

func saysNo(l *Local) func() bool { return func() bool { return !l.has("absent") } }

func TestShared(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		const staleness = 10 * time.Second
		a, b := shared(t, rdb, staleness), shared(t, rdb, staleness)
		ctx := t.Context()
		if !a.has("absent") {
			t.Fatal("nothing is known yet")
		}
		for _, l := range []*Local{a, b} {
			_, err := l.Rebuild(ctx, Keys("row"), unsettled)
			must(t, err)
			if !l.has("row") || l.has("absent") {
				t.Fatal("not as it was built")
			}
		}
		must(t, a.Add(ctx, "one"))
		if !a.has("one") {
			t.Fatal("the own key is missed")
		}
		testenv.Eventually(t, "one is heard of", func() bool { return b.has("one") })
		many := keysOf("many", 3000) // three announcements
		must(t, b.AddMany(ctx, many))
		testenv.Eventually(t, "many are heard of", func() bool {
			maybe, _ := a.MightContainMany(ctx, many)
			n := 0
			for _, m := range maybe {
				if m {
					n++
				}
			}
			return n == len(many)
		})
		for i := range 30 {
			key := fmt.Sprint("fresh", i)
			must(t, a.Add(ctx, key))
			maybe, err := b.MightContainFresh(ctx, []string{key, "absent"})
			if must(t, err); !maybe[0] {
				t.Fatalf("%s is missed", key)
			}
		}
		testenv.Eventually(t, "no, freshly", func() bool {
			maybe, _ := b.MightContainFresh(ctx, []string{"absent"})
			return !maybe[0]
		})
		if err := a.Load(strings.NewReader("")); err == nil {
			t.Error("loaded")
		}
		b.Close()
		if !b.has("absent") {
			t.Error("a closed filter says no")
		}
	})
}

func TestSharedOptions(t *testing.T) {
	_, rdb := testenv.Mini(t)
	for want, f := range map[string]func() (*Local, error){
		"in a name":            func() (*Local, error) { return NewShared(rdb, "a b", 1, 0.1, nil) },
		"is nil":               func() (*Local, error) { return NewShared(nil, "a", 1, 0.1, nil) },
		"rate":                 func() (*Local, error) { return NewShared(rdb, "a", 1, 3, nil) },
		"Options.MaxStaleness": func() (*Local, error) { return NewShared(rdb, "a", 1, 0.1, &Options{MaxStaleness: 1}) },
	} {
		if l, err := f(); err == nil || l != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestSharedGap: an announcement is missed. Until the filter is built again it says "maybe", also
// when all that comes later is heard; Maintain builds it again.
func TestSharedGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		l := shared(t, rdb, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := l.Rebuild(ctx, Keys("row"), unsettled)
		must(t, err)
		b, err := l.build(ctx, 0)
		must(t, err)
		if l.has("absent") {
			t.Fatal("not built")
		}
		key := l.shared.bus.Key(0)
		last, _ := strconv.ParseInt(m.HGet(key, ""), 10, 64)
		m.HSet(key, "", strconv.FormatInt(last+5, 10)) // as of an announcement that is lost
		gaps := func() int64 { return l.shared.bus.Stats().Gaps }
		for before := gaps(); gaps() == before; {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if s := l.shared.bus.Stats(); s.Trusted == 0 || !l.has("absent") {
			t.Fatal("something was missed, and it has said no")
		}
		if err := b.finish(ctx); err != errMissed {
			t.Errorf("what was being built meanwhile: %v", err)
		}
		done := make(chan error)
		go func() { done <- l.Maintain(ctx, Keys("row"), &MaintainOptions{Check: time.Hour, Rebuild: unsettled}) }()
		time.Sleep(5 * time.Second)
		if l.has("absent") || !l.has("row") {
			t.Fatal("it was not built again")
		}
		m.HSet(key, "", strconv.FormatInt(last+1e6, 10))
		time.Sleep(5 * time.Second) // less than Check
		if l.has("absent") || gaps() < 2 {
			t.Fatalf("it was not built again at once; %d gaps", gaps())
		}
		cancel()
		if err := <-done; err != context.Canceled {
			t.Error(err)
		}
		l.Close()
	})
}

// TestSharedOutage: while Redis is out of reach a key may have been added, from MaxStaleness on. If
// none was, it needs not be built again.
func TestSharedOutage(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, direct := testenv.Mini(t)
			w := new(wire)
			sharedOutage(t, direct, w.client(t, direct), w.hang, w.cut)
		})
	})
	if !accept {
		return
	}
	t.Run("redis", func(t *testing.T) {
		server := testenv.SharedRedis(t)
		proxy := testenv.NewProxy(t, server.Addr)
		o := server.Options()
		o.Addr = proxy.Addr
		far := redis.NewClient(o)
		defer far.Close()
		sharedOutage(t, server.Client(t), far, proxy.Hang, func(on bool) {
			if on {
				proxy.Cut()
			} else {
				proxy.Restore()
			}
		})
	})
}

func sharedOutage(t *testing.T, direct, far *redis.Client, hang, cut func(on bool)) {
	const staleness = 300 * time.Millisecond
	near, l := shared(t, direct, staleness), shared(t, far, staleness)
	ctx := t.Context()
	_, err := l.Rebuild(ctx, Keys("there"), unsettled)
	must(t, err)
	hang(true)
	must(t, near.Add(ctx, "added"))
	time.Sleep(staleness)
	maybe := l.has("added")
	hang(false)
	if !maybe {
		t.Fatal("the key is missed")
	}
	testenv.Eventually(t, "it was missed, or is heard of late", func() bool {
		h := l.holds.Load().active
		return h == nil || has(h, "added")
	})
	if _, err := l.Rebuild(ctx, Keys("there", "added"), unsettled); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "no", saysNo(l))
	g := l.holds.Load().active
	cut(true)
	testenv.Eventually(t, "maybe", func() bool { return l.has("absent") })
	cut(false)
	testenv.Eventually(t, "no", saysNo(l))
	if l.holds.Load().active != g {
		t.Error("nothing was missed, and it was dropped")
	}
	cut(true)
	testenv.Eventually(t, "maybe", func() bool { return l.has("absent") })
	must(t, near.Add(ctx, "missed"))
	cut(false)
	testenv.Eventually(t, "it is dropped", func() bool { return l.holds.Load().active == nil })
	if !l.has("missed") {
		t.Fatal("it was missed")
	}
	near.Close()
	l.Close()
}

// TestSharedDeaf: a shared Local that cannot hear must not begin to read.
func TestSharedDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		m.SetError("LOADING")
		l := shared(t, rdb, time.Second)
		var read atomic.Bool
		_, err := l.Rebuild(t.Context(), func(ctx context.Context, after string) iter.Seq2[string, error] {
			read.Store(true)
			return Keys()(ctx, after)
		}, unsettled)
		if !errors.Is(err, errDeaf) || read.Load() {
			t.Fatalf("%v; the source was read: %v", err, read.Load())
		}
		if err := l.Add(t.Context(), "a"); err == nil {
			t.Error("it has announced a key")
		}
		m.SetError("")
		go l.Maintain(t.Context(), Keys("there"), &MaintainOptions{Check: time.Hour, Rebuild: unsettled})
		time.Sleep(10 * time.Second)
		if l.has("absent") {
			t.Error("it does not hear")
		}
		l.Close() // ends Maintain
	})
}

// TestSharedManyKeys: however many are added, each trip has its own time-out.
func TestSharedManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		rdb.AddHook(&tap{before: func([]redis.Cmder) error {
			time.Sleep(2 * time.Second)
			return nil
		}})
		l := shared(t, rdb, 10*time.Second)
		must(t, l.AddMany(t.Context(), keysOf("many", 50*maxTold)))
		l.Close()
	})
}

// TestSharedUnsureIsNotWorn: keys that were let through while it could not be sure are no false
// positives, for which the table would be read anew.
func TestSharedUnsureIsNotWorn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		l := shared(t, rdb, time.Second)
		ctx := t.Context()
		_, err := l.Rebuild(ctx, Keys("row"), unsettled)
		must(t, err)
		o, w := (*MaintainOptions)(nil).withDefaults(), &watched{}
		mustNotBeDue := func() {
			t.Helper()
			if due, err := l.due(ctx, o, w); due || err != nil {
				t.Fatal(due, err)
			}
		}
		mustNotBeDue()
		l.holds.Load().active.begun = time.Now().Add(-2 * time.Hour)
		m.SetError("LOADING")
		time.Sleep(5 * time.Second)
		for range 2 * minSamples {
			if !l.has("absent") {
				t.Fatal("it cannot be sure")
			}
			l.NotFound(1)
		}
		m.SetError("")
		time.Sleep(5 * time.Second)
		mustNotBeDue()
		if l.has("absent") {
			t.Fatal("it is sure")
		}
		l.Close()
	})
}

// TestSharedCommitted: another process has begun to build its filter between Admit and the commit.
func TestSharedCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		a, b := shared(t, rdb, time.Second), shared(t, rdb, time.Second)
		ctx := t.Context()
		_, err := b.Rebuild(ctx, Keys("other rows"), unsettled)
		must(t, err)
		committed, err := a.Admit(ctx, []string{"row"})
		must(t, err)
		time.Sleep(time.Second)
		building, err := b.build(ctx, 0)
		must(t, err)
		must(t, building.add(ctx, []string{"other rows"}))
		must(t, committed(ctx))
		time.Sleep(time.Second) // that is how long it may take
		must(t, building.finish(ctx))
		if !b.has("row") {
			t.Fatal("the row is missed")
		}
		a.Close()
		b.Close()
	})
}
