package pglogical

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { testenv.RegisterChild("pg-outbox-writer", killedWriter) }

// stops is a hook of a Redis client that stops the process before a command.
type stops struct{ now atomic.Bool }

func (s *stops) stop() {
	if s.now.Load() {
		fmt.Println("committed")
		select {}
	}
}

func (s *stops) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stops) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s.stop(); return next(ctx, cmd) }
}

func (s *stops) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { s.stop(); return next(ctx, cmds) }
}

// killedWriter writes rows of a block at the level Outbox. In the last write it stops between the
// commit and the invalidation, and is killed there, unless it was killed before.
func killedWriter() {
	play := strings.Split(os.Getenv("PLAY"), "|")
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	p, err := newProcess(play[0], play[1])
	check(err)
	block, err := strconv.Atoi(play[3])
	check(err)
	hook := &stops{}
	p.Redis.AddHook(hook)
	ctx := context.Background()
	box, err := NewOutbox(ctx, p.DB, p.Cache, &OutboxOptions{Slot: play[2]})
	check(err)
	w, err := consistency.NewWriter(p.DB, p.Cache, &consistency.Options{Queue: box})
	check(err)
	fmt.Println("begins")
	last := rand.IntN(10)
	for n := 0; ; n++ {
		ids := sourcetest.IDs(block)
		id, other := ids[rand.IntN(len(ids))], ids[rand.IntN(len(ids))]
		email := sourcetest.Email(other)
		err := w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			var was string
			_ = tx.GetContext(ctx, &was, "SELECT email FROM users WHERE id = $1 FOR UPDATE", id)
			_, err := tx.ExecContext(ctx,
				"INSERT INTO users VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET email = $2, n = users.n + 1", id,
				email, n)
			if err == nil && was != "" {
				err = consistency.Touch(ctx, p.ByEmail[0].Key(was))
			}
			hook.now.Store(err == nil && n >= last)
			return err
		}, p.ByID[0].Key(id), p.ByEmail[0].Key(email))
		_ = err // the address is taken
	}
}

// TestOutboxWriterIsKilled: processes that write are killed at any moment, mostly between the
// commit and the invalidation, and the Consumer stops and starts again, while others read all the
// time. When the outbox is applied, no cache has anything that the database has not.
func TestOutboxWriterIsKilled(t *testing.T) {
	kills := testenv.AtSize(6, 500)
	o := outboxOn(own(t, "synchronous_commit=on"))
	o.consume()
	var block atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			o.reader.Read(int(block.Load()))
		}
	})
	between := 0
	for n := range kills {
		block.Store(int64(n))
		o.reader.Read(n)
		c := testenv.SpawnChild(t, "pg-outbox-writer",
			"PLAY="+strings.Join([]string{o.server.DSN(t), o.redis.Addr, o.name, strconv.Itoa(n)}, "|"))
		_, err := c.ReadLine(testenv.Hang)
		o.Check(err)
		if n%5 == 4 {
			time.Sleep(rand.N(20 * time.Millisecond))
		} else if _, err := c.ReadLine(testenv.Hang); err == nil {
			between++
		}
		c.Kill()
		if n%4 == 2 {
			o.end()
			o.consume()
		}
	}
	stop()
	work.Wait()
	if between == 0 {
		t.Error("no process was killed between a commit and its invalidation")
	}
	o.applied()
	var stale []string
	var cached float64
	defer func() {
		if len(stale) > 0 {
			t.Logf("%d keys are stale: %.2000s", len(stale), strings.Join(stale, "; "))
		}
	}()
	testenv.Eventually(t, "no key is stale", func() bool { // the memory of a process may be for MaxStaleness
		var err error
		stale, cached, err = o.reader.Stale(t.Context(), kills)
		o.Check(err)
		return len(stale) == 0
	})
	t.Logf("killed %d times, %d of them between a commit and its invalidation; %d messages since the Consumer has "+
		"last started; %d keys compared, %.2f of them cached", kills, between, o.Consumer.Stats().Messages,
		o.reader.Keys(kills), cached)
}
