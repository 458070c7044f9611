package pglogical

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestCreateStatement(t *testing.T) {
	for version, want := range map[int]string{
		150000: `CREATE_REPLICATION_SLOT "1a" LOGICAL pgoutput (SNAPSHOT 'nothing')`,
		160009: `CREATE_REPLICATION_SLOT "1a" LOGICAL pgoutput (SNAPSHOT 'nothing')`,
		170000: `CREATE_REPLICATION_SLOT "1a" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER)`,
	} {
		if got := createStatement("1a", version); got != want {
			t.Errorf("%d: %s", version, got)
		}
	}
}

// pair is a primary with the table users, its standby, and a process that caches rows of the one
// that accepts writes.
type pair struct {
	*testing.T
	primary, standby *testenv.Postgres
	link             *testenv.Proxy // from the standby to the primary
	*sourcetest.Process
	checkpoint string
	slots      bool // the standby copies the slot
}

// newPair starts a standby with these settings, and caches the rows of block 0.
func newPair(t *testing.T, primary *testenv.Postgres, standby ...string) *pair {
	t.Helper()
	p := &pair{T: t, primary: primary, checkpoint: t.TempDir() + "/position"}
	p.primary.Database(t)
	p.link = testenv.NewProxy(t, p.primary.Addr)
	p.standby = p.primary.StartStandby(t, p.link.Addr, standby...)
	var err error
	p.Process, err = newProcess(p.dsn(), testenv.StartRedis(t).Addr)
	p.check(err)
	t.Cleanup(p.Process.Close)
	p.do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)",
		"ALTER TABLE users REPLICA IDENTITY FULL", "CREATE PUBLICATION cacheaside FOR TABLE users")
	for _, id := range sourcetest.IDs(0) {
		p.do(fmt.Sprintf("INSERT INTO users VALUES (%d, '%s', 0)", id, sourcetest.Email(id)))
	}
	return p
}

func (p *pair) dsn() string { return p.primary.WriterDSN(p.T, p.standby) }

func (p *pair) check(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pair) do(statements ...string) {
	p.Helper()
	for _, s := range statements {
		_, err := p.DB.Exec(s)
		p.check(err)
	}
}

// consume runs a Consumer until stop is called, or the test ends.
func (p *pair) consume() (c *canal.Consumer, stop func()) {
	p.Helper()
	c, err := newConsumer(p.Process, p.dsn(), "cacheaside", p.checkpoint, slog.New(slog.DiscardHandler))
	p.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	testenv.Eventually(p, "it consumes", func() bool { return c.Stats().Lag >= 0 })
	ended := false
	stop = func() {
		cancel()
		if !ended {
			ended = true
			p.check(<-done)
		}
	}
	p.Cleanup(stop)
	return c, stop
}

// read caches the rows of a block, and the absence of those of another one.
func (p *pair) read() {
	p.Read(0)
	p.Read(1)
}

// replicated waits until the standby has all that the primary has written.
func (p *pair) replicated() {
	p.Helper()
	var end string
	p.check(p.DB.Get(&end, "SELECT pg_current_wal_flush_lsn()"))
	testenv.Eventually(p, "the standby has it", func() bool {
		var has bool
		p.check(p.DB.Get(&has, "SELECT coalesce(bool_or(replay_lsn >= $1::pg_lsn), false) FROM pg_stat_replication "+
			"WHERE application_name = 'standby'", end))
		return has
	})
}

// failover kills the primary, and promotes the standby.
func (p *pair) failover() {
	p.Helper()
	p.primary.Kill()
	p.standby.Promote(p)
}

// want waits until the Consumer processes new writes. It fails unless the Consumer has lost the
// given number of positions, or if a key is stale.
func (p *pair) want(c *canal.Consumer, lost int64) {
	p.Helper()
	before := c.Stats().Changes
	testenv.Eventually(p, "it continues on the new primary", func() bool {
		// fails while the pool has connections of the former one
		_, _ = p.DB.Exec("UPDATE users SET n = n + 1 WHERE id = 0")
		time.Sleep(20 * time.Millisecond)
		return c.Stats().Changes > before && c.Stats().PositionsLost >= lost
	})
	if s := c.Stats(); s.PositionsLost != lost {
		p.Errorf("%d positions are lost, want %d", s.PositionsLost, lost)
	}
	p.caughtUp(c)
	stale, _, err := p.Stale(p.Context(), 2)
	p.check(err)
	if len(stale) > 0 {
		p.Errorf("%d keys are stale: %.1000s", len(stale), strings.Join(stale, "; "))
	}
}

// caughtUp waits until all that was written is processed.
func (p *pair) caughtUp(c *canal.Consumer) {
	p.Helper()
	var text string
	p.check(p.DB.Get(&text, "SELECT pg_current_wal_flush_lsn()"))
	end, err := parseLSN(text)
	p.check(err)
	testenv.Eventually(p, "it has caught up", func() bool {
		at, err := parse(c.Stats().Position)
		return err == nil && at.lsn >= end
	})
}

// A slot that the standby does not have is a lost position.
func TestPromotedStandbyWithoutTheSlot(t *testing.T) {
	p := newPair(t, testenv.StartPostgres(t))
	_, stop := p.consume()
	p.read()
	stop()
	p.do("UPDATE users SET n = n + 100")
	p.replicated()
	p.failover()
	c, _ := p.consume()
	p.want(c, 1)
}

// What a standby has not received is undone by its promotion: what the caches have of it is stale.
func TestPromotedStandbyLacksTransactions(t *testing.T) {
	p := newPair(t, testenv.StartPostgres(t))
	c, _ := p.consume()
	p.replicated()
	p.link.Cut()
	before := c.Stats().Changes
	p.do("UPDATE users SET n = n + 100")
	testenv.Eventually(p, "it is processed", func() bool { return c.Stats().Changes >= before+sourcetest.BlockRows })
	p.read()
	p.failover()
	p.want(c, 1)
}

// withSlots starts a pair whose standby copies the slots.
func withSlots(t *testing.T) *pair {
	t.Helper()
	p := newPair(t, testenv.StartPostgresFrom(t, 17, "synchronized_standby_slots=standby"), "sync_replication_slots=on",
		"hot_standby_feedback=on")
	p.slots = true
	return p
}

// synchronized waits until the standby would keep the slot when it is promoted.
func (p *pair) synchronized() {
	p.Helper()
	testenv.Eventually(p, "the standby has the slot", func() bool {
		p.do("SELECT pg_log_standby_snapshot()")
		return p.standby.Ask(p, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'cacheaside' AND synced "+
			"AND NOT temporary AND invalidation_reason IS NULL") == "1"
	})
}

// A slot that the standby has copied continues there, and no change is missed.
func TestFailoverSlot(t *testing.T) {
	p := withSlots(t)
	_, stop := p.consume()
	p.read()
	p.synchronized()
	stop()
	p.do("UPDATE users SET n = n + 100")
	p.replicated()
	p.failover()
	c, _ := p.consume()
	testenv.Eventually(p, "the changes of the former primary arrive",
		func() bool { return c.Stats().Changes >= sourcetest.BlockRows })
	p.want(c, 0)
}

// A commit that the standby has not received is read by others, and not by the Consumer. When the
// promotion has undone it, no log has it.
func TestFailoverUndoesCommits(t *testing.T) {
	p := withSlots(t)
	c, _ := p.consume()
	p.synchronized()
	p.replicated()
	p.link.Cut()
	p.do("UPDATE users SET n = n + 100")
	p.read()
	p.failover()
	p.want(c, 0)
}

// After a promotion all tables are replaced once, because it may have undone commits that were
// read.
func TestNewTimeline(t *testing.T) {
	x := own(t)
	x.DB.SetMaxIdleConns(0) // the restart breaks connections
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	need.From = saved(x.Listen(x.source(), need))
	x.server.NewTimeline(t)
	x.Do("INSERT INTO users VALUES (1)")
	l := x.Listen(x.source(), need)
	begin := l.Positions()[0]
	replaced(l, "the timeline is another one", 1)
	l.Until("the log continues", func() bool { return counts(l, "insert users: 1") == 1 })
	settled := saved(l)
	for i, from := range []event.Position{begin, settled} { // as if the Run had ended before and after that
		need.From = from
		l = x.Listen(x.source(), need)
		asksAgain(l)
		wantReplaced(l, 1-i)
		l.Stop()
	}
}
