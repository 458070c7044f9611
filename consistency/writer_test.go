package consistency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestClose: it waits for what is under way, has the outbox forget what is done, and leaves nothing
// behind; what is in a queue in memory is lost, and said.
func TestClose(t *testing.T) {
	x := start(t, setup{relay: true})
	begun, resume := make(chan struct{}), make(chan struct{})
	updated, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		updated <- x.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			close(begun)
			<-resume
			return set(1, "new")(ctx, tx)
		}, x.rows.Key(1))
	}()
	<-begun
	go func() { closed <- x.At(Async).Close() }()
	x.eventually("it is closed", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return x.closed })
	for _, level := range levels {
		is(t, x.At(level).Update(t.Context(), set(1, "newer"), x.rows.Key(1)), cacheaside.ErrClosed)
	}
	is(t, x.Enqueue(t.Context(), x.admin, x.rows.Key(1)), cacheaside.ErrClosed)
	select {
	case <-closed:
		t.Fatal("closed while a write was under way")
	default:
	}
	close(resume)
	x.check(<-updated)
	x.check(<-closed)
	x.check(x.Close())
	x.reads("new")
	if n := x.intents(); n != 0 {
		t.Errorf("%d rows in the outbox", n)
	}
}

func TestCloseLosesTheQueue(t *testing.T) {
	x := start(t, setup{relay: true, inMemory: true, Options: Options{DoubleDelete: time.Hour}})
	x.check(x.Update(t.Context(), set(1, "new"), x.rows.Key(1)))
	for range 2 {
		if err := x.Close(); err == nil || !strings.Contains(err.Error(), "1 pending invalidations") {
			t.Error(err)
		}
	}
}

func TestOptions(t *testing.T) {
	x := start(t, setup{})
	for want, o := range map[string]Options{
		"DoubleDelete": {DoubleDelete: -1},
		"AsyncDelay":   {AsyncDelay: 2 * time.Hour},
		"Level":        {Level: Strict + 1},
		"outbox":       {Level: Outbox},
		"AlertAt":      {Relay: &RelayOptions{AlertAt: -1}},
	} {
		if _, err := NewWriter(x.admin, x.cache, &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := NewWriter(nil, x.cache, nil); err == nil {
		t.Error("no database was taken")
	}
	if _, err := NewWriter(x.admin, nil, nil); err == nil {
		t.Error("no cache was taken")
	}
	if err := x.At(Strict+1).Update(t.Context(), set(1, "new")); err == nil {
		t.Error("no error of a level that there is not")
	}
}

// TestNotStrict: holds need the consent of all processes.
func TestNotStrict(t *testing.T) {
	x := start(t, setup{})
	c, err := cacheaside.New(x.server.Client(t), nil)
	x.check(err)
	defer c.Close()
	if _, err := NewWriter(x.admin, c, &Options{Level: Strict}); err == nil ||
		!strings.Contains(err.Error(), "NewWriter: Options.Level: the level Strict needs Options.StrictWrites") {
		t.Error(err)
	}
	w, err := NewWriter(x.admin, c, nil)
	x.check(err)
	defer w.Close()
	if err := w.At(Strict).Update(t.Context(), set(1, "new"), x.rows.Key(1)); err == nil ||
		!strings.Contains(err.Error(), "StrictWrites") {
		t.Error(err)
	}
	x.has("old")
}

// TestClosedWriter says that it is the Writer that is closed.
func TestClosedWriter(t *testing.T) {
	x := start(t, setup{})
	x.Close()
	err := x.Update(t.Context(), set(1, "new"), x.rows.Key(1))
	if !errors.Is(err, cacheaside.ErrClosed) || err.Error() != "consistency: the Writer is closed" {
		t.Error(err)
	}
}

// TestWithoutRedis: all levels work for one process, too.
func TestWithoutRedis(t *testing.T) {
	x := start(t, setup{})
	c := x.newCache(nil, cacheaside.Options{})
	rows := x.newLoader(c, nil)
	w, err := NewWriter(x.admin, c, &Options{Queue: x.box, NoRelay: true})
	x.check(err)
	defer w.Close()
	for i, level := range levels {
		_, err := rows.Get(t.Context(), 1)
		x.check(err)
		now := fmt.Sprint(i)
		x.check(w.At(level).Update(t.Context(), set(1, now), rows.Key(1)))
		if level == Async { // which may still be remembered
			continue
		}
		if got, err := rows.Get(t.Context(), 1); got != now || err != nil {
			t.Errorf("%v: %q, %v; want %q", level, got, err, now)
		}
	}
	x.check(WriteThrough(t.Context(), w, rows, 1, through(1, "new")))
	if got, err := rows.Get(t.Context(), 1); got != "new" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestNoConnection: a write waits for a connection no longer than its ctx, and leaves nothing on
// hold.
func TestNoConnection(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testNoConnection) }

func testNoConnection(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	x.writes.SetMaxOpenConns(1)
	c, err := x.writes.Connx(t.Context())
	x.check(err)
	defer c.Close()
	for _, level := range levels {
		ctx, stop := context.WithCancel(t.Context())
		before, updated := x.writes.Stats().WaitCount, make(chan error, 1)
		go func() { updated <- x.At(level).Update(ctx, set(1, "new"), x.rows.Key(1)) }()
		x.eventually("it waits for a connection", func() bool { return x.writes.Stats().WaitCount > before })
		stop()
		is(t, testenv.Receive(t, "the end of the write", updated), context.Canceled)
		x.nothingHeld()
	}
}

// TestManyWriters: writes of all levels at once, with readers between them, leave nothing stale.
func TestManyWriters(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testManyWriters) }

func testManyWriters(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, relay: true, direct: true})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			for n := range 25 {
				v, id := fmt.Sprint(g, "/", n), 1+r.IntN(2)
				var err error
				if level := levels[r.IntN(len(levels))]; r.IntN(4) == 0 {
					err = WriteThrough(t.Context(), x.Writer, x.rows, id, through(id, v))
				} else {
					err = x.At(level).Update(t.Context(), set(id, v), x.rows.Key(id))
				}
				if err != nil {
					t.Error(err)
				}
				for _, l := range []*cacheaside.Loader[int, string]{x.rows, x.other} {
					if _, err := l.Get(t.Context(), id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	x.eventually("the outbox is empty", func() bool { return x.intents() == 0 })
	for id := range 2 {
		want, err := x.load(t.Context(), 1+id)
		x.check(err)
		for _, l := range []*cacheaside.Loader[int, string]{x.rows, x.other} {
			if got, err := l.Get(t.Context(), 1+id); got != want || err != nil {
				t.Errorf("row %d: %q, %v; want %q", 1+id, got, err, want)
			}
		}
	}
}
