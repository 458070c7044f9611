package pglogical

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	return sourcetest.Open("pgx", dsn, redisAddr, &cacheaside.Options{RedisTimeout: testenv.Hang,
		ReadTimeout: testenv.Hang, MaxStaleness: time.Second}, "public", "users")
}

func newConsumer(p *sourcetest.Process, dsn, slot, checkpoint string, logger *slog.Logger) (*canal.Consumer, error) {
	s, err := New(Options{ConnString: dsn, Slot: slot, Logger: logger})
	if err != nil {
		return nil, err
	}
	return canal.NewConsumer(p.Cache, s, canal.NewFileCheckpoint(checkpoint), p.Bindings(),
		&canal.Options{SaveEvery: 50 * time.Millisecond, Logger: logger})
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

// play is a database whose rows are written and read while the Consumer is killed.
type play struct {
	*world
	redis  *testenv.Redis
	cache  *sourcetest.Process // of the test process, which reads
	env    string              // of the Consumer
	block  atomic.Int64        // of the rows that are written now
	value  atomic.Int64
	writes atomic.Int64
	pause  sync.RWMutex // held while nothing is written
}

func newPlay(t *testing.T) *play {
	t.Helper()
	p := &play{world: own(t, "synchronous_commit=on"), redis: testenv.StartRedis(t)}
	p.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT, note TEXT)",
		"ALTER TABLE users REPLICA IDENTITY FULL")
	var err error
	p.cache, err = newProcess(p.server.DSN(t), p.redis.Addr)
	p.Check(err)
	p.env = "PLAY=" + strings.Join([]string{p.server.DSN(t), p.redis.Addr, p.name,
		filepath.Join(t.TempDir(), "position")}, "|")
	ctx, stop := context.WithCancel(context.Background())
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
			block := int(p.block.Load())
			p.cache.Read(block)
			p.cache.Read(max(0, block-1)) // whose last changes the Consumer may still have to read
		}
	})
	t.Cleanup(func() {
		stop()
		work.Wait()
		p.cache.Close()
	})
	return p
}

// write executes a statement for rows of the current block. Many fail, as where an address is
// taken, and while the server is down.
func (p *play) write(r *rand.Rand) {
	p.pause.RLock()
	defer p.pause.RUnlock()
	email := sourcetest.Email
	id := func() int64 { return sourcetest.IDs(int(p.block.Load()))[r.IntN(sourcetest.BlockRows)] }
	n := p.value.Add(1)
	const insert = "INSERT INTO users (id, email, n) VALUES "
	statement := [...]string{
		insert + fmt.Sprintf("(%d, '%s', %d)", id(), email(id()), n),
		fmt.Sprintf("UPDATE users SET n = %d WHERE id = %d", n, id()),
		fmt.Sprintf("UPDATE users SET email = '%s', n = %d WHERE id = %d", email(id()), n, id()),
		fmt.Sprintf("UPDATE users SET id = %d WHERE email = '%s'", id(), email(id())),
		fmt.Sprintf("DELETE FROM users WHERE id = %d", id()),
		fmt.Sprintf("BEGIN; UPDATE users SET n = %d WHERE id = %d; SAVEPOINT a; DELETE FROM users WHERE id = %d; "+
			"ROLLBACK TO a; "+insert+"(%d, '%s', %d) ON CONFLICT DO NOTHING; COMMIT", n, id(), id(), id(),
			email(id()), n),
		insert + fmt.Sprintf("(%d, '%s', %d), (%d, '%s', %d) ON CONFLICT DO NOTHING", id(), email(id()), n, id(),
			email(id()), n),
	}[r.IntN(7)]
	if _, err := p.DB.Exec(statement); err == nil {
		p.writes.Add(1)
	}
}

// written waits until some rows were written.
func (p *play) written() {
	p.Helper()
	before := p.writes.Load()
	testenv.Eventually(p, "rows are written", func() bool { return p.writes.Load() >= before+20 })
}

// begins spawns a Consumer, and returns its first position. A server that was killed a moment
// before can take a while.
func (p *play) begins() (*testenv.Child, string) {
	p.Helper()
	c := testenv.SpawnChild(p.T, "pg-consumer", p.env)
	line, err := c.ReadLine(testenv.Hang)
	p.Check(err)
	return c, line
}

// act kills the Consumer again and again, each time with one of the faults. When the last Consumer
// has caught up, it compares all keys, and returns the share of them that was cached.
func (p *play) act(kills int, faults []fault) (cached float64) {
	p.Helper()
	c, line := p.begins()
	for n := range kills {
		p.written()
		time.Sleep(rand.N(100 * time.Millisecond))
		end := func() {}
		if len(faults) > 0 {
			if e := faults[n%len(faults)].do(p); e != nil {
				end = e
			}
		}
		c.Kill()
		end()
		p.block.Add(1)
		c, line = p.begins()
	}
	p.pause.Lock()
	defer p.pause.Unlock()
	p.catchUp(c, line)
	time.Sleep(1100 * time.Millisecond) // MaxStaleness
	blocks := int(p.block.Load()) + 1
	stale, cached, err := p.cache.Stale(p.Context(), blocks)
	p.Check(err)
	// The Consumer notices DDL after a while. What it leaves behind is stale for ever.
	for began := time.Now(); len(stale) > 0 && slices.ContainsFunc(faults, func(f fault) bool { return f.ddl }) &&
		time.Since(began) < testenv.Hang; time.Sleep(tick) {
		stale, _, err = p.cache.Stale(p.Context(), blocks)
		p.Check(err)
	}
	if len(stale) > 0 {
		p.Errorf("%d keys are stale: %.2000s", len(stale), strings.Join(stale, "; "))
	}
	c.Kill()
	return cached
}

// catchUp waits until the Consumer, which has printed line, has read all that is written.
func (p *play) catchUp(c *testenv.Child, line string) {
	p.Helper()
	end, err := parseLSN(p.Ask("SELECT pg_current_wal_flush_lsn()"))
	p.Check(err)
	for {
		at, err := parse(event.Position(strings.Fields(line)[0]))
		p.Check(err)
		if at.lsn >= end {
			return
		}
		line, err = c.ReadLine(testenv.Hang)
		p.Check(err)
	}
}

// TestConsumerIsKilled: a process that consumes is killed at any moment, again and again, while
// rows are written by plain SQL and read all the time, while the server and Redis are killed, and
// while the table and the publication are altered. When it has caught up, no cache has anything
// that the database has not.
func TestConsumerIsKilled(t *testing.T) {
	p := newPlay(t)
	all, kills := acts, testenv.AtSize(2, 10)
	if testenv.Accepting {
		all = append(slices.Clone(acts), moreActs...)
	}
	count, most := map[string]int{}, 0.0
	for i, faults := range all {
		began := time.Now()
		cached := p.act(kills, faults)
		var names []string
		for n := range kills {
			if len(faults) > 0 {
				f := faults[n%len(faults)]
				count[f.name]++
				if n < len(faults) {
					names = append(names, f.name)
				}
			}
		}
		most = max(most, cached)
		t.Logf("act %d, %q: %d kills, %.2f of the keys cached, %v", i, names, kills, cached,
			time.Since(began).Round(time.Millisecond))
	}
	t.Logf("the consumer was killed %d times; %v; %d statements; %d keys compared in the end", kills*len(all), count,
		p.writes.Load(), p.cache.Keys(int(p.block.Load())+1))
	if most == 0 {
		t.Error("nothing was cached: this has shown nothing")
	}
}
