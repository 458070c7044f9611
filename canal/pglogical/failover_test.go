package pglogical

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// Of two Consumers with one lock, one slot and one checkpoint the other takes over, and loses no
// position. Neither waits for the slot while it has no lock.
func TestTakeover(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT, n INT)")
	addr, checkpoint := testenv.SharedRedis(t).Addr, t.TempDir()+"/position"
	start := func() (c *canal.Consumer, stop func()) {
		p, err := newProcess(x.server.DSN(t), addr)
		x.Check(err)
		t.Cleanup(p.Close)
		locker, err := lock.NewRedis(p.Redis, &lock.Options{TTL: testenv.Hang})
		x.Check(err)
		c, err = canal.NewConsumer(p.Cache, x.source(func(o *Options) { o.Logger = slog.New(slog.DiscardHandler) }),
			canal.NewFileCheckpoint(checkpoint),
			[]canal.Binding{canal.Bind(p.ByID[0], "public", "users",
				canal.IntColumn[int64]("id"))}, &canal.Options{Locker: locker, SaveEvery: 10 * time.Millisecond,
				Logger: slog.New(slog.DiscardHandler)})
		x.Check(err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		return c, func() {
			cancel()
			x.Check(<-done)
			x.Check(locker.Close())
		}
	}
	a, stopA := start()
	testenv.Eventually(x, "the first one consumes", func() bool { return a.Stats().Lag >= 0 })
	b, stopB := start()
	x.Do("INSERT INTO users VALUES (1)")
	testenv.Eventually(x, "the first one has processed it", func() bool { return a.Stats().Changes == 1 })
	if s := b.Stats(); s.Active || s.Retained != -1 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
	stopA()
	x.Do("INSERT INTO users VALUES (2)")
	testenv.Eventually(x, "the other one has processed the next", func() bool { return b.Stats().Changes >= 1 })
	if s := b.Stats(); s.PositionsLost != 0 || s.Retained < 0 {
		t.Errorf("%+v", s)
	}
	stopB()
}
