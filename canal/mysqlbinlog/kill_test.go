package mysqlbinlog

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var (
	killSeed  = flag.Uint64("kill.seed", 1, "of TestConsumerIsKilled")
	killKills = flag.Int("kill.kills", 0,
		"of the consumer in each act of TestConsumerIsKilled; 0: 2, and 10 with CACHEASIDE_ACCEPT")
)

// fault is a fault in addition to the kills.
type fault struct {
	name    string
	down    bool // when the consumer is dead
	forgets bool // makes the consumer invalidate everything
	do      func(p *play)
}

var (
	redisHangs = fault{name: "Redis hangs",
		do: func(p *play) { p.redisOut(p.redis.Pause, p.redis.Resume, time.Second) }}
	redisDies = fault{name: "Redis killed",
		do: func(p *play) { p.redisOut(p.redis.Kill, func() { p.redis.Restart(p.T) }, time.Second) }}
	redisMinute = fault{name: "Redis out for a minute", do: func(p *play) {
		p.redisOut(p.redis.Kill, func() { p.redis.Restart(p.T) }, 0)
		p.redisDue = time.Now().Add(time.Minute)
	}}
	mariaDies = fault{name: "the database killed", do: (*play).mariaKilled}
	logEnds   = fault{name: "FLUSH BINARY LOGS", do: func(p *play) { p.try("FLUSH BINARY LOGS") }}
	logPurged = fault{name: "the log purged", do: (*play).purgeAll, down: true, forgets: true}

	moved = fault{name: "columns reordered", forgets: true,
		do: func(p *play) { p.ddl("ALTER TABLE people MODIFY email VARCHAR(64) NOT NULL FIRST") }}
	dropped = fault{name: "a column dropped, and another added", forgets: true, do: func(p *play) {
		p.ddl("ALTER TABLE people DROP COLUMN note", "ALTER TABLE people ADD COLUMN note BLOB FIRST")
	}}
	renamed = fault{name: "columns renamed", forgets: true, do: func(p *play) {
		p.ddl("ALTER TABLE people RENAME COLUMN note TO remark", "ALTER TABLE people RENAME COLUMN remark TO note")
	}}
	truncated = fault{name: "TRUNCATE", forgets: true,
		do: func(p *play) { p.ddl("TRUNCATE TABLE people", "TRUNCATE TABLE visits") }}
	swapped = fault{name: "a table put in the place of another", forgets: true, do: func(p *play) {
		// as gh-ost does: https://github.com/github/gh-ost/blob/master/doc/cut-over.md
		p.ddl("CREATE TABLE people_new LIKE people", "INSERT INTO people_new SELECT * FROM people",
			"UPDATE people_new SET n = n + 1000000000", "RENAME TABLE people TO people_old, people_new TO people",
			"DROP TABLE people_old")
	}}
)

// acts are played one after the other; after each all keys are compared. Those of DDL, and of lost
// positions, have everything be forgotten, and so would hide what others leave.
var acts = [][]fault{
	{logEnds},
	{redisHangs}, // by itself: a Redis that dies forgets what a consumer has left in it
	{redisDies},
	{mariaDies},
	{logPurged},
	{moved, dropped, swapped},
}

var moreActs = [][]fault{
	{redisDies, mariaDies, logEnds, redisHangs},
	{renamed, redisDies},
	{redisMinute},
	{mariaDies, redisHangs, mariaDies},
	{truncated, logEnds, mariaDies},
	{redisHangs, redisHangs, redisDies, redisDies},
	{logPurged, redisHangs, swapped},
	{mariaDies, logEnds, mariaDies, logEnds},
	{moved, mariaDies, dropped, renamed},
	{logPurged, logPurged},
	{redisHangs, mariaDies},
	{swapped, swapped, truncated},
	{mariaDies, redisDies, mariaDies, redisHangs},
	{logEnds, redisHangs, logEnds},
	{},
}

// TestConsumerIsKilled: a process that consumes is killed at any moment, again and again, while
// rows are written by plain SQL and read all the time, and while servers are killed, hang, and lose
// their logs, and tables are altered. When it has caught up, no cache has anything that the
// database has not.
func TestConsumerIsKilled(t *testing.T) {
	t.Parallel() // with tests on other servers: much of it is waiting
	testenv.OneUnlessAccepting(t, consumerIsKilled)
}

func consumerIsKilled(t *testing.T, e testenv.Engine) {
	all, kills := acts, cmp.Or(*killKills, testenv.AtSize(2, 10))
	if testenv.Accepting {
		all = append(acts, moreActs...)
	}
	p := newPlay(t, e, *killSeed, 2*time.Millisecond)
	folder := t.TempDir()
	checkpoints := []string{filepath.Join(folder, "checkpoint"), "sql",
		"sqlite:" + filepath.Join(folder, "checkpoint.db")}
	began := time.Now()
	faults := map[string]int{}
	for i, some := range all {
		actBegan := time.Now()
		for tries := 1; !p.act(checkpoints[i%len(checkpoints)], kills, some); tries++ {
			if tries == 5 {
				t.Fatal("few of the keys were cached, each time: this has shown nothing")
			}
		}
		for _, f := range some {
			faults[f.name]++
		}
		t.Logf("act %d, %v: %d kills, %v", i, names(some), kills, time.Since(actBegan).Round(time.Millisecond))
	}
	t.Logf("seed %d: the consumer was killed %d times; %v; %d transactions written, %d changes consumed, %d of them "+
		"not understood, %d positions lost; %d keys compared after each act, of three processes, 0 stale; %v",
		*killSeed, kills*len(all), faults, p.writes.Load(), p.consumed, p.misread, p.lost,
		p.own.Keys(int(p.block.Load())), time.Since(began).Round(time.Millisecond))
	if p.lost == 0 {
		t.Error("no position was lost: the purging has shown nothing")
	}
}

func names(faults []fault) (all []string) {
	for _, f := range faults {
		all = append(all, f.name)
	}
	return all
}

// act kills a consumer again and again, with the faults between, and compares all keys when the
// last one has caught up. It reports whether that is conclusive: on a very busy machine readers
// cache only few keys.
func (p *play) act(checkpoint string, kills int, faults []fault) bool {
	at := map[int][]fault{} // before which kill
	for i, f := range faults {
		n := i * kills / len(faults)
		at[n] = append(at[n], f)
	}
	world := p.consumerAt(checkpoint)
	a := p.spawn("play-consumer", world)
	p.until("the consumer begins", func() bool { return a.begun.Load() > 0 })
	p.write()
	var back time.Time // when Redis is due that is out
	outUntil := -1     // which kill
	for n := range kills {
		a.after = time.Duration(p.random.Int64N(int64(300 * time.Millisecond)))
		due := time.Now().Add(time.Duration(p.random.Int64N(int64(200 * time.Millisecond))))
		soon := p.random.IntN(5) == 0 // at any instant since it was spawned
		for _, f := range at[n] {
			if !f.down {
				time.Sleep(time.Duration(p.random.Int64N(int64(200 * time.Millisecond))))
				f.do(p)
			}
		}
		if p.wake != nil && slices.ContainsFunc(at[n], func(f fault) bool { return !f.down }) {
			back, outUntil = p.redisDue, n+1
			// The first changes without Redis are read by the consumer that is killed, and these
			// rows must not change again.
			p.redisDue = time.Now().Add(time.Hour)
			first := p.writes.Load()
			p.until("rows change without Redis", func() bool { return p.writes.Load() >= first+5 })
			p.turn()
		}
		// Redis stays out until two consumers are killed: one that has read changes and could not
		// invalidate them in Redis, and the next one, which has read all later changes.
		held := p.wake != nil && n <= outUntil
		written := p.writes.Load()
		if held {
			p.redisDue = time.Now().Add(time.Hour)
			a.after += 200 * time.Millisecond
		}
		for {
			p.recover(false)
			begun := time.Duration(a.begun.Load())
			lived := time.Since(a.since)
			if held && p.writes.Load() < written+50 {
				time.Sleep(time.Millisecond)
				continue
			}
			if !held && soon && time.Now().After(due) || begun > 0 && lived > begun+a.after && time.Now().After(due) ||
				lived > 2*time.Second {
				break
			}
			time.Sleep(time.Millisecond)
		}
		p.bury(a)
		if held && n == outUntil {
			p.redisDue = back
		}
		for _, f := range at[n] {
			if f.down {
				f.do(p)
			}
		}
		if p.random.IntN(3) == 0 {
			time.Sleep(time.Duration(p.random.Int64N(int64(200 * time.Millisecond))))
		}
		a = p.spawn("play-consumer", world)
	}
	if p.wake != nil {
		p.redisDue = back
	}
	for p.recover(false) {
		time.Sleep(time.Millisecond)
	}
	p.rest()
	p.caughtUp(a)
	cached := p.compare()
	p.bury(a)
	p.Logf("%.2f of the keys were cached", cached)
	return cached >= 0.5 || slices.ContainsFunc(faults, func(f fault) bool { return f.forgets })
}

// redisOut stops Redis for a time, at most limit.
func (p *play) redisOut(out, back func(), limit time.Duration) {
	p.recover(true)
	p.redisIsOut.Store(true)
	out()
	p.redisDue = time.Now().Add(limit/4 + time.Duration(p.random.Int64N(int64(limit)+1)))
	p.wake = back
}

// mariaKilled kills it, but not in the midst of what it does not do as a whole.
func (p *play) mariaKilled() {
	p.recover(true)
	p.quiet.Lock()
	p.maria.Kill()
	p.quiet.Unlock()
	p.mariaDue = time.Now().Add(time.Duration(p.random.Int64N(int64(500 * time.Millisecond))))
}

// recover restarts the servers whose time has come, or all, and reports whether one is still down.
func (p *play) recover(all bool) (out bool) {
	if p.wake != nil && (all || time.Now().After(p.redisDue)) {
		p.wake()
		p.wake = nil
		p.redisIsOut.Store(false)
	}
	p.databaseBack(all)
	return p.wake != nil || !p.mariaDue.IsZero()
}

// databaseBack restarts a killed database when its time has come, or now.
func (p *play) databaseBack(now bool) {
	if !p.mariaDue.IsZero() && (now || time.Now().After(p.mariaDue)) {
		p.maria.Restart(p.T)
		p.mariaDue = time.Time{}
	}
}

// try executes statements and records failures. A statement that waits in a deadlock with writers
// may have to be repeated, like the writers' own statements.
func (p *play) try(statements ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Hang)
	defer cancel()
	p.databaseBack(true)
	for _, s := range statements {
		var err error
		for again := true; again; {
			_, err = p.DB.ExecContext(ctx, s)
			e, ok := errors.AsType[*mysql.MySQLError](err)
			// ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK; and ER_DUP_ENTRY, which MySQL's ALTER returns
			// for a row that was duplicated only for a moment, while it applies concurrent writes
			// (https://dev.mysql.com/doc/refman/9.7/en/innodb-online-ddl-limitations.html).
			again = ok && (e.Number == 1205 || e.Number == 1213 || e.Number == 1062) && ctx.Err() == nil
		}
		if err != nil {
			p.Errorf("%.100s: %v", s, err)
		}
	}
}

// ddl alters tables while they are written.
func (p *play) ddl(statements ...string) {
	p.recover(true)
	p.try(statements...)
}

// purgeAll leaves the dead consumer no log to go on from.
func (p *play) purgeAll() {
	p.recover(true)
	written := p.writes.Load()
	p.until("something is written", func() bool { return p.writes.Load() > written })
	p.try("FLUSH BINARY LOGS")
	logs, err := logFiles(p.DB)
	p.Check(err)
	name := logs[len(logs)-1]
	p.until("the logs are purged", func() bool { // those that are still sent to the dead one are not
		p.try(fmt.Sprintf("PURGE BINARY LOGS TO '%s'", name))
		logs, err := logFiles(p.DB)
		p.Check(err)
		return logs[0] == name
	})
}
