package mysqlbinlog

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// play runs two tables that are written by plain SQL, two processes that read them through their
// caches, and consumers, all of which can be killed. Blocks of rows are written one after the
// other: a stale row of one block is not repaired by a later write.
type play struct {
	sourcetest.World
	own     *playProcess
	maria   *testenv.SQLServer
	redis   *testenv.Redis
	random  *rand.Rand
	readers []*actor

	// held while MariaDB is killed: what it does not do as a whole, MyISAM's rows and some DDL,
	// must not be under way
	quiet   sync.RWMutex
	block   atomic.Int64 // is being written
	values  atomic.Int64 // each is written once
	writes  atomic.Int64
	stop    context.CancelFunc // of the writers
	writers sync.WaitGroup

	lines    chan string // what the readers say
	consumed int64
	lost     int64 // positions
	misread  int64
	redisDue time.Time // it is down until then
	mariaDue time.Time
	wake     func() // that brings Redis back

	redisIsOut atomic.Bool
}

func newPlay(t *testing.T, e testenv.Engine, seed uint64, rest time.Duration) *play {
	// A writer that waits for a row, of one who waits for a table, which waits for the writer:
	// InnoDB does not see such circles.
	m := e.Start(t, "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--innodb-lock-wait-timeout=1")
	p := &play{maria: m, redis: testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always"),
		random: rand.New(rand.NewPCG(seed, 0)), lines: make(chan string, 1000)}
	w := playWorld{Redis: p.redis.Addr, Addr: m.Addr, DSN: m.DSN(t), Schema: m.Database(t), ServerID: 4711,
		Saves: 50 * time.Millisecond, Rest: rest}
	own, err := w.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	p.own, p.World = own, sourcetest.World{T: t, DB: own.DB.DB, Schema: w.Schema}
	p.Do("CREATE TABLE people (id BIGINT PRIMARY KEY, note VARCHAR(20), email VARCHAR(64) NOT NULL UNIQUE, n BIGINT "+
		"NOT NULL)",
		"CREATE TABLE visits (id BIGINT PRIMARY KEY, note VARCHAR(20), email VARCHAR(64) NOT NULL UNIQUE, n BIGINT "+
			"NOT NULL) ENGINE=MyISAM",
		"CREATE TABLE cacheaside_checkpoint (name VARCHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, place "+
			"TEXT NOT NULL, saved BIGINT NOT NULL)")
	w.Memory = true
	for range 2 {
		p.readers = append(p.readers, p.spawn("play-reader", w))
	}
	return p
}

// actor is a process of a play.
type actor struct {
	*testenv.Child
	scope actorScope
	since time.Time
	told  atomic.Pointer[told] // the last state that a consumer has printed
	begun atomic.Int64         // how long after since it began to consume
	lost  atomic.Int64         // positions, as a consumer says before it does anything about it
	idle  atomic.Int64         // how often a consumer has said that it is not the active one
	round atomic.Int64         // how often a reader has read its block
	after time.Duration        // how long it lives from then on
	gone  chan struct{}
}

// actorScope is a test that ends early, for a process of many.
type actorScope struct {
	testing.TB
	cleanups []func()
}

func (a *actorScope) Cleanup(f func()) { a.cleanups = append(a.cleanups, f) }

func (p *play) spawn(role string, w playWorld) *actor {
	a := &actor{scope: actorScope{TB: p.T}, since: time.Now(), gone: make(chan struct{})}
	a.Child = testenv.SpawnChild(&a.scope, role, w.env())
	p.Cleanup(a.end)
	over := p.Context()
	go func() {
		defer close(a.gone)
		for {
			line, err := a.ReadLine(time.Hour)
			if err != nil {
				return
			}
			if role == "play-reader" {
				if line == "round" {
					a.round.Add(1)
					continue
				}
				select {
				case p.lines <- line:
				case <-over.Done():
				}
				continue
			}
			if line == positionLost {
				a.lost.Add(1)
				continue
			}
			t := new(told)
			if json.Unmarshal([]byte(line), t) != nil {
				continue
			}
			a.told.Store(t)
			if !t.Active {
				a.idle.Add(1)
			}
			if t.Active && t.Position != "" && a.begun.Load() == 0 {
				a.begun.Store(int64(time.Since(a.since)))
			}
		}
	}()
	return a
}

// end kills it, and leaves nothing of it. All that it has said is known then.
func (a *actor) end() {
	a.Kill()
	<-a.gone
	for _, f := range slices.Backward(a.scope.cleanups) {
		f()
	}
	a.scope.cleanups = nil
}

// says returns the last state that the consumer has printed.
func (a *actor) says() told {
	if t := a.told.Load(); t != nil {
		return *t
	}
	return told{}
}

func (p *play) consumerAt(checkpoint string) playWorld {
	w := p.own.playWorld
	w.Checkpoint = checkpoint
	return w
}

// bury kills a consumer, and notes what it has done.
func (p *play) bury(a *actor) {
	a.end()
	s := a.says()
	p.consumed += s.Changes
	p.lost += max(s.PositionsLost, a.lost.Load())
	p.misread += s.Misunderstood
}

// write has three sessions write until rest.
func (p *play) write() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	for range 3 {
		r := rand.New(rand.NewPCG(p.random.Uint64(), 0))
		p.writers.Go(func() {
			for ctx.Err() == nil {
				if p.change(ctx, r) == nil {
					p.writes.Add(1)
				}
				linger(p.own.Rest * 3 / 4)
			}
		})
	}
	p.writers.Go(func() {
		for ctx.Err() == nil {
			p.turn()
			var rounds []int64
			for _, r := range p.readers {
				rounds = append(rounds, r.round.Load())
			}
			for began := time.Now(); ctx.Err() == nil && !p.turned(began, rounds); {
				time.Sleep(5 * time.Millisecond)
			}
		}
	})
}

// turned reports whether the next block can begin: readers must have read this one until most of
// its keys were cached when they changed, which takes longer on a busy machine.
func (p *play) turned(began time.Time, rounds []int64) bool {
	for i, r := range p.readers {
		if r.round.Load() < rounds[i]+8 && !p.redisIsOut.Load() { // what changes without it must not change again
			return false
		}
	}
	return time.Since(began) >= 300*time.Millisecond
}

// turn begins a new block.
func (p *play) turn() {
	n := p.block.Add(1)
	for _, r := range p.readers {
		fmt.Fprintf(r.Stdin, "read %d\n", n)
	}
}

func (p *play) rest() {
	p.stop()
	p.writers.Wait()
}

// change is a transaction of one statement or several. Many fail, as where an e-mail address is
// taken.
func (p *play) change(ctx context.Context, r *rand.Rand) error {
	p.quiet.RLock()
	defer p.quiet.RUnlock()
	if r.IntN(3) > 0 {
		_, err := p.DB.ExecContext(context.WithoutCancel(ctx), p.statement(r))
		return err
	}
	tx, err := p.DB.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	for range 1 + r.IntN(5) {
		_, _ = tx.Exec(p.statement(r))
	}
	if r.IntN(4) == 0 {
		return tx.Rollback()
	}
	return tx.Commit()
}

func (p *play) statement(r *rand.Rand) string {
	table := playTables[r.IntN(len(playTables))]
	block := int(p.block.Load()) - 1
	id := func() int64 { return sourcetest.IDs(block)[r.IntN(sourcetest.BlockRows)] }
	row := func() string { return fmt.Sprintf("(%d, '%s', %d)", id(), sourcetest.Email(id()), p.values.Add(1)) }
	switch r.IntN(8) {
	case 0:
		return "INSERT INTO " + table + " (id, email, n) VALUES " + row()
	case 1:
		return "INSERT INTO " + table + " (id, email, n) VALUES " + row() + ", " + row() + ", " + row()
	case 2:
		return "REPLACE INTO " + table + " (id, email, n) VALUES " + row()
	case 3:
		return "INSERT INTO " + table + " (id, email, n) VALUES " + row() +
			fmt.Sprintf(" ON DUPLICATE KEY UPDATE n = VALUES(n), email = '%s'", sourcetest.Email(id()))
	case 4:
		return fmt.Sprintf("DELETE FROM %s WHERE id = %d", table, id())
	case 5:
		return fmt.Sprintf("UPDATE %s SET email = '%s', n = %d WHERE id = %d", table, sourcetest.Email(id()),
			p.values.Add(1), id())
	case 6:
		return fmt.Sprintf("UPDATE %s SET id = %d WHERE email = '%s'", table, id(), sourcetest.Email(id()))
	}
	first := id()
	return fmt.Sprintf("UPDATE %s SET n = %d + id WHERE id BETWEEN %d AND %d", table,
		p.values.Add(sourcetest.BlockRows)-sourcetest.BlockRows, first, first+3)
}

// number is that of the last transaction of a position: here all are of one domain, or of one
// server without gaps.
func numberOf(position string) int {
	last, _ := strconv.Atoi(position[strings.LastIndexAny(position, "-:")+1:])
	return last
}

// logged is the number of the last transaction.
func (p *play) logged() int {
	variable := "gtid_binlog_pos"
	if p.maria.Engine == testenv.MySQL {
		variable = "gtid_executed"
	}
	return numberOf(p.Ask("SELECT @@global." + variable))
}

// until waits for something that a consumer says.
func (p *play) until(what string, is func() bool) {
	p.Helper()
	testenv.Eventually(p.T, what, is)
}

// caughtUp returns when one of the consumers has done all that was written.
func (p *play) caughtUp(consumers ...*actor) {
	p.Helper()
	p.Do(fmt.Sprintf("REPLACE INTO people (id, email, n) VALUES (-1, 'last', %d)", p.values.Add(1)))
	last, limit := p.logged(), time.Now().Add(testenv.Hang)
	for !slices.ContainsFunc(consumers, func(a *actor) bool { return numberOf(string(a.says().Position)) >= last }) {
		if time.Now().After(limit) {
			for _, a := range consumers {
				p.Errorf("%+v", a.says())
			}
			p.Fatalf("no consumer has caught up with %d", last)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// compare fails if any process reads a stale key in any block, and returns the share of keys that
// were in Redis.
func (p *play) compare() (cached float64) {
	p.Helper()
	time.Sleep(playStaleness + 100*time.Millisecond)
	blocks := int(p.block.Load())
	stale, cached, err := p.own.Stale(p.Context(), blocks)
	p.Check(err)
	for _, r := range p.readers {
		fmt.Fprintln(r.Stdin, "check")
		for line := range p.lines {
			if line == "checked <nil>" {
				break
			}
			stale = append(stale, "to a reader "+line)
		}
	}
	if len(stale) > 0 {
		p.Fatalf("%d of %d keys are stale: %.2000s", len(stale), p.own.Keys(blocks), strings.Join(stale, "; "))
	}
	return cached
}
