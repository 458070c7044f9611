package mysqlbinlog

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// Of two Consumers that have one lock and one checkpoint, the other takes over when the active one
// is killed, stands still, or is cut off from what keeps its lock; nothing is left stale, and what
// the first one would still save is refused.
func TestFailover(t *testing.T) {
	t.Parallel() // with the test that kills the consumer
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		for _, kind := range []string{"redis", "mysql"} {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				rest := 2 * time.Millisecond
				if !testenv.Accepting {
					rest = 20 * time.Millisecond // they write all the while, but cost less
				}
				p := newPlay(t, e, *killSeed, rest)
				checkpoint := filepath.Join(t.TempDir(), "checkpoint")
				if kind == "mysql" {
					checkpoint = "sql"
					if err := mysqllock.CreateTable(t.Context(), p.DB, nil); err != nil {
						t.Fatal(err)
					}
				}
				p.failover(kind, checkpoint)
			})
		}
	})
}

// standby is one of two Consumers, each with ways to the servers of its own.
type standby struct {
	*actor
	world        playWorld
	redis, maria *testenv.Proxy
}

func (p *play) standby(kind, checkpoint string) *standby {
	s := &standby{world: p.consumerAt(checkpoint), redis: testenv.NewProxy(p.T, p.redis.Addr),
		maria: testenv.NewProxy(p.T, p.maria.Addr)}
	s.world.DSN = strings.Replace(s.world.DSN, p.maria.Addr, s.maria.Addr, 1)
	s.world.Saves = 500 * time.Millisecond // so that there is as a rule something to be saved
	s.world.Redis, s.world.Addr, s.world.Lock, s.world.LockTTL = s.redis.Addr, s.maria.Addr, kind, failoverTTL()
	s.actor = p.spawn("play-consumer", s.world)
	return s
}

// failoverTTL is such that a busy machine seldom loses a lock by itself; where the time is
// reported, it is short.
func failoverTTL() time.Duration {
	if testenv.Accepting {
		return time.Second
	}
	return 4 * time.Second
}

// working returns which of two is the active one, when it has done all that was written before,
// and the other one says that it is not.
func (p *play) working(a, b *standby) (active, other *standby) {
	p.Helper()
	at := p.logged()
	works := func(a, b *standby) bool {
		return a.says().Active && numberOf(string(a.says().Position)) >= at && !b.says().Active
	}
	p.until("one of them consumes, and the other does not", func() bool { return works(a, b) || works(b, a) })
	if works(b, a) {
		return b, a
	}
	return a, b
}

// lockWaits returns how many transactions wait for a row. A process that is stopped between the
// UPDATE of the checkpoint and its COMMIT keeps the row locked.
func (p *play) lockWaits() int {
	n, err := strconv.Atoi(p.Ask("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))
	p.Check(err)
	return n
}

func (p *play) failover(kind, checkpoint string) {
	active, other := p.standby(kind, checkpoint), p.standby(kind, checkpoint)
	p.until("one of them begins", func() bool { return active.begun.Load()+other.begun.Load() > 0 })
	p.write()
	rounds := 1
	if testenv.Accepting {
		rounds = 5
	}
	total := 0
	for range rounds {
		refused := 0
		for _, how := range []string{"killed", "cut off", "stopped", "stopped", "stopped", "stopped", "stopped",
			"stopped", "stopped", "stopped"} {
			if how == "stopped" && refused > 0 {
				break // the time before it had nothing to save, or had locked the row already
			}
			active, other = p.working(active, other)
			time.Sleep(time.Duration(p.random.Int64N(int64(300 * time.Millisecond))))
			link := active.redis
			if kind == "mysql" {
				link = active.maria
			}
			began, at, failures := time.Now(), p.logged(), other.says().Failures
			switch how {
			case "killed":
				p.bury(active.actor)
			case "stopped":
				active.Pause()
			case "cut off":
				link.Cut()
			}
			p.until("the other takes over", func() bool { return other.says().Active })
			took := time.Since(began)
			p.until("the other consumer continues", func() bool { return numberOf(string(other.says().Position)) > at })
			p.Logf("lock on %s with a TTL of %v: the active one is %s: the other takes over after %v, and has done "+
				"what was written since after %v", kind, failoverTTL(), how, took.Round(time.Millisecond), time.Since(
				began).Round(time.Millisecond))
			if testenv.Accepting && took > failoverTTL()+2*time.Second {
				p.Errorf("it took %v", took)
			}
			switch how {
			case "killed":
				active.actor = p.spawn("play-consumer", active.world)
			case "stopped":
				p.until("the other saves its position, or waits for a row that the stopped one has locked",
					func() bool {
						s := other.says()
						waited := s.Failures > failures && strings.Contains(s.LastError, "Lock wait timeout")
						return numberOf(string(s.Saved)) > at || waited || p.lockWaits() > 0
					})
				idle := active.idle.Load()
				active.Resume()
				p.until("the old one knows that it is not", func() bool { return active.idle.Load() > idle })
				refused += int(active.says().Refused)
			case "cut off":
				idle := active.idle.Load()
				p.until("the old one knows that it is not",
					func() bool { return active.idle.Load() > idle || !active.says().Active })
				link.Restore()
			}
			active, other = other, active
		}
		total += refused
	}
	p.rest()
	p.caughtUp(active.actor, other.actor)
	p.compare()
	p.Logf("%d saves of holders that had lost the lock were refused", total)
	for _, s := range []*standby{active, other} {
		if why := s.says().LastError; strings.Contains(why, "server id") {
			p.Errorf("it has ended: %s", why)
		}
		p.bury(s.actor)
	}
	if total == 0 {
		p.Error("none was: this has shown nothing")
	}
}
