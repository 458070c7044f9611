package pglogical

import (
	"context"
	"database/sql"
	"errors"
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

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { testenv.RegisterChild("pg-consumer", killedConsumer) }

// process is what each process of a play has: caches over the table users (id, email, n).
type process struct {
	db      *sql.DB
	rdb     *redis.Client
	cache   *cacheaside.Cache
	byID    *cacheaside.Loader[int64, string]
	byEmail *cacheaside.Loader[string, string]
	loads   atomic.Int64
}

func newProcess(dsn, redisAddr string) (_ *process, err error) {
	p := &process{}
	if p.db, err = sql.Open("pgx", dsn); err != nil {
		return nil, err
	}
	p.rdb = redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	if p.cache, err = cacheaside.New(p.rdb, &cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang, MaxStaleness: time.Second}); err != nil {
		return nil, err
	}
	o := &cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: time.Hour, MemoryTTL: time.Hour, Jitter: -1, EarlyRefresh: -1, StaleFor: -1, BreakAt: -1, ErrorTTL: 50 * time.Millisecond} // nothing heals by itself
	if p.byID, err = cacheaside.NewLoader(p.cache, "by-id", pgLoad[int64](p, "SELECT email || ' ' || n FROM users WHERE id = $1"), o); err != nil {
		return nil, err
	}
	p.byEmail, err = cacheaside.NewLoader(p.cache, "by-email", pgLoad[string](p, "SELECT id || ' ' || n FROM users WHERE email = $1"), o)
	return p, err
}

func pgLoad[K comparable](p *process, query string) func(context.Context, K) (string, error) {
	return func(ctx context.Context, key K) (text string, err error) {
		p.loads.Add(1)
		err = p.db.QueryRowContext(ctx, query, key).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			err = cacheaside.ErrNotFound
		}
		return text, err
	}
}

func (p *process) close() {
	_ = p.cache.Close()
	_ = p.rdb.Close()
	_ = p.db.Close()
}

func (p *process) consumer(dsn, slot, checkpoint string, logger *slog.Logger) (*canal.Consumer, error) {
	s, err := New(Options{ConnString: dsn, Slot: slot, Logger: logger})
	if err != nil {
		return nil, err
	}
	return canal.NewConsumer(p.cache, s, canal.NewFileCheckpoint(checkpoint), []canal.Binding{
		canal.Bind(p.byID, "public", "users", canal.IntColumn[int64]("id")), canal.Bind(p.byEmail, "public", "users", canal.TextColumn[string]("email")),
	}, &canal.Options{SaveEvery: 50 * time.Millisecond, Logger: logger})
}

// killedConsumer consumes until it is killed, and prints its position.
func killedConsumer() {
	play := strings.Split(os.Getenv("PLAY"), "|")
	p, err := newProcess(play[0], play[1])
	if err != nil {
		panic(err)
	}
	c, err := p.consumer(play[0], play[2], play[3], slog.New(slog.DiscardHandler))
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

const blockRows = 20 // that are written at the same time, and never again

// play is the rows, their writers, a reader, and a consumer in another process, which is killed.
type play struct {
	*world
	*process
	block  atomic.Int64
	value  atomic.Int64
	writes atomic.Int64
	pause  sync.RWMutex // held while the server is killed
}

func email(id int64) string { return fmt.Sprintf("m%d@x", id) }

// write executes a statement for rows of the current block. Many fail, as where an address is
// taken.
func (p *play) write(r *rand.Rand) {
	p.pause.RLock()
	defer p.pause.RUnlock()
	id := func() int64 { return p.block.Load()*blockRows + r.Int64N(blockRows) }
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
	if _, err := p.world.db.Exec(statement); err == nil {
		p.writes.Add(1)
	}
}

// read reads all keys of the current block.
func (p *play) read(ctx context.Context) {
	for i := range int64(blockRows) {
		id := p.block.Load()*blockRows + i
		_, _ = p.byID.Get(ctx, id)
		_, _ = p.byEmail.Get(ctx, email(id))
	}
}

// compare fails if a key of any block is stale.
func (p *play) compare() (keys int, cached float64) {
	p.Helper()
	time.Sleep(1100 * time.Millisecond) // MaxStaleness
	loads := p.loads.Load()
	for id := range (p.block.Load() + 1) * blockRows {
		keys += 2
		var want, wantEmail string
		_ = p.world.db.QueryRow("SELECT email || ' ' || n FROM users WHERE id = $1", id).Scan(&want)
		_ = p.world.db.QueryRow("SELECT id || ' ' || n FROM users WHERE email = $1", email(id)).Scan(&wantEmail)
		got, err := p.byID.Get(p.Context(), id)
		if got != want || err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
			p.Errorf("%d is %q, not %q: %v", id, got, want, err)
		}
		if got, err = p.byEmail.Get(p.Context(), email(id)); got != wantEmail || err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
			p.Errorf("%s is %q, not %q: %v", email(id), got, wantEmail, err)
		}
	}
	return keys, 1 - float64(p.loads.Load()-loads)/float64(keys)
}

// begins spawns a consumer, and returns when it has a position. A server that was killed a moment
// before can take a while.
func (p *play) begins(env string) (*testenv.Child, string) {
	p.Helper()
	c := testenv.SpawnChild(p.T, "pg-consumer", env)
	line, err := c.ReadLine(testenv.Hang)
	p.check(err)
	return c, line
}

// TestConsumerIsKilled: a process that consumes is killed at any moment, again and again, and so is
// the server, while rows are written by plain SQL and read all the time. When it has caught up, no
// cache has anything that the database has not.
func TestConsumerIsKilled(t *testing.T) {
	kills := 4
	if testenv.Accepting {
		kills = 200
	}
	x := own(t, "synchronous_commit=on")
	x.do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)", "ALTER TABLE users REPLICA IDENTITY FULL")
	r := testenv.StartRedis(t)
	own, err := newProcess(x.server.DSN(t), r.Addr)
	x.check(err)
	defer own.close()
	p := &play{world: x, process: own}
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
			p.read(ctx)
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
	x.do("INSERT INTO users VALUES (-1, 'last', 0)")
	end, err := parseLSN(x.ask("SELECT pg_current_wal_flush_lsn()"))
	x.check(err)
	for {
		at, err := parse(event.Position(strings.Fields(line)[0]))
		x.check(err)
		if at.lsn >= end {
			break
		}
		line, err = c.ReadLine(testenv.Hang)
		x.check(err)
	}
	keys, cached := p.compare()
	t.Logf("the consumer was killed %d times, the server %d times; %d statements; %d keys compared, %.2f of them cached; the consumer's last words: %s", kills, servers, p.writes.Load(), keys, cached, line)
	c.Kill()
}
