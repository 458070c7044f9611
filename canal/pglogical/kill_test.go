package pglogical

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { testenv.RegisterChild("pg-consumer", killedConsumer) }

func newProcess(dsn, redisAddr string) (*sourcetest.Process, error) {
	return sourcetest.Open("pgx", dsn, redisAddr, &cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang, MaxStaleness: time.Second}, "public", "users")
}

func newConsumer(p *sourcetest.Process, dsn, slot, checkpoint string, logger *slog.Logger) (*canal.Consumer, error) {
	s, err := New(Options{ConnString: dsn, Slot: slot, Logger: logger})
	if err != nil {
		return nil, err
	}
	return canal.NewConsumer(p.Cache, s, canal.NewFileCheckpoint(checkpoint), p.Bindings(), &canal.Options{SaveEvery: 50 * time.Millisecond, Logger: logger})
}

// killedConsumer consumes until it is killed, and prints its position.
func killedConsumer() {
	play := strings.Split(os.Getenv("PLAY"), "|")
	p, err := newProcess(play[0], play[1])
	if err != nil {
		panic(err)
	}
	c, err := newConsumer(p, play[0], play[2], play[3], slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	go func() { panic(c.Run(context.Background())) }()
	for last := ""; ; time.Sleep(5 * time.Millisecond) {
		if s := c.Stats(); string(s.Position) != last {
			last = string(s.Position)
			fmt.Println(last, s.PositionsLost, s.Misunderstood)
		}
	}
}

// play is what the writers of the rows share.
type play struct {
	*world
	block  atomic.Int64
	value  atomic.Int64
	writes atomic.Int64
	pause  sync.RWMutex // held while the server is killed
}

// write executes a statement for rows of the current block. Many fail, as where an address is
// taken.
func (p *play) write(r *rand.Rand) {
	p.pause.RLock()
	defer p.pause.RUnlock()
	email := sourcetest.Email
	id := func() int64 { return sourcetest.IDs(int(p.block.Load()))[r.IntN(sourcetest.BlockRows)] }
	n := p.value.Add(1)
	statement := [...]string{
		fmt.Sprintf("INSERT INTO users VALUES (%d, '%s', %d)", id(), email(id()), n),
		fmt.Sprintf("UPDATE users SET n = %d WHERE id = %d", n, id()),
		fmt.Sprintf("UPDATE users SET email = '%s', n = %d WHERE id = %d", email(id()), n, id()),
		fmt.Sprintf("UPDATE users SET id = %d WHERE email = '%s'", id(), email(id())),
		fmt.Sprintf("DELETE FROM users WHERE id = %d", id()),
		fmt.Sprintf("BEGIN; UPDATE users SET n = %d WHERE id = %d; SAVEPOINT a; DELETE FROM users WHERE id = %d; ROLLBACK TO a; INSERT INTO users VALUES (%d, '%s', %d) ON CONFLICT DO NOTHING; COMMIT", n, id(), id(), id(), email(id()), n),
		fmt.Sprintf("INSERT INTO users VALUES (%d, '%s', %d), (%d, '%s', %d) ON CONFLICT DO NOTHING", id(), email(id()), n, id(), email(id()), n),
	}[r.IntN(7)]
	if _, err := p.DB.Exec(statement); err == nil {
		p.writes.Add(1)
	}
}

// begins spawns a consumer, and returns when it has a position. A server that was killed a moment
// before can take a while.
func (p *play) begins(env string) (*testenv.Child, string) {
	p.Helper()
	c := testenv.SpawnChild(p.T, "pg-consumer", env)
	line, err := c.ReadLine(testenv.Hang)
	p.Check(err)
	return c, line
}

// TestConsumerIsKilled: a process that consumes is killed at any moment, again and again, and so is
// the server, while rows are written by plain SQL and read all the time. When it has caught up, no
// cache has anything that the database has not.
func TestConsumerIsKilled(t *testing.T) {
	kills := testenv.AtSize(4, 200)
	x := own(t, "synchronous_commit=on")
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)", "ALTER TABLE users REPLICA IDENTITY FULL")
	r := testenv.StartRedis(t)
	own, err := newProcess(x.server.DSN(t), r.Addr)
	x.Check(err)
	defer own.Close()
	p := &play{world: x}
	env := "PLAY=" + strings.Join([]string{x.server.DSN(t), r.Addr, x.name, filepath.Join(t.TempDir(), "position")}, "|")
	c, line := p.begins(env)

	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 2 {
		random := rand.New(rand.NewPCG(rand.Uint64(), 0))
		work.Go(func() {
			for ctx.Err() == nil {
				p.write(random)
				time.Sleep(time.Duration(random.IntN(4)) * time.Millisecond)
			}
		})
	}
	work.Go(func() {
		for ctx.Err() == nil {
			own.Read(int(p.block.Load()))
		}
	})
	servers := 0
	for n := range kills {
		written := p.writes.Load()
		testenv.Eventually(x, "rows are written", func() bool { return p.writes.Load() >= written+20 })
		time.Sleep(rand.N(100 * time.Millisecond))
		if n%4 == 3 {
			p.pause.Lock()
			x.server.Kill()
			x.server.Restart(t)
			servers++
			p.pause.Unlock()
		}
		c.Kill()
		p.block.Add(1)
		c, line = p.begins(env)
	}
	stop()
	work.Wait()
	x.Do("INSERT INTO users VALUES (-1, 'last', 0)")
	end, err := parseLSN(x.Ask("SELECT pg_current_wal_flush_lsn()"))
	x.Check(err)
	for {
		at, err := parse(event.Position(strings.Fields(line)[0]))
		x.Check(err)
		if at.lsn >= end {
			break
		}
		line, err = c.ReadLine(testenv.Hang)
		x.Check(err)
	}
	time.Sleep(1100 * time.Millisecond) // MaxStaleness
	blocks := int(p.block.Load()) + 1
	stale, cached, err := own.Stale(t.Context(), blocks)
	x.Check(err)
	if len(stale) > 0 {
		t.Errorf("%d keys are stale: %.2000s", len(stale), strings.Join(stale, "; "))
	}
	t.Logf("the consumer was killed %d times, the server %d times; %d statements; %d keys compared, %.2f of them cached; the consumer's last words: %s", kills, servers, p.writes.Load(), own.Keys(blocks), cached, line)
	c.Kill()
}
