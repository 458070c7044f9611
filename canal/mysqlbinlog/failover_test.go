package mysqlbinlog

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// Of two Consumers that have one lock and one checkpoint, the other takes over when the active one is killed, stands still, or is cut off from what keeps its lock; nothing is left stale, and what the first one would still save is refused.
func TestFailover(t *testing.T) {
	p := newPlay(t, *killSeed)
	if err := mysqllock.CreateTable(t.Context(), p.db.DB, nil); err != nil {
		t.Fatal(err)
	}
	checkpoints := map[string]string{"redis": filepath.Join(t.TempDir(), "checkpoint"), "mysql": "sql"}
	for _, kind := range []string{"redis", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			p.t = t
			p.failover(kind, checkpoints[kind])
		})
	}
}

// standby is one of two Consumers, each with ways to the servers of its own.
type standby struct {
	*actor
	world        playWorld
	redis, maria *testenv.Proxy
}

func (p *play) standby(kind, checkpoint string) *standby {
	s := &standby{world: p.consumerAt(checkpoint), redis: testenv.NewProxy(p.t, p.redis.Addr), maria: testenv.NewProxy(p.t, p.maria.Addr)}
	s.world.DSN = strings.Replace(s.world.DSN, p.maria.Addr, s.maria.Addr, 1)
	s.world.Saves = 500 * time.Millisecond // so that there is as a rule something to be saved
	s.world.Redis, s.world.Addr, s.world.Lock = s.redis.Addr, s.maria.Addr, kind
	s.actor = p.spawn("play-consumer", s.world)
	return s
}

func (p *play) failover(kind, checkpoint string) {
	active, other := p.standby(kind, checkpoint), p.standby(kind, checkpoint)
	p.until("one of them begins", 20*time.Second, func() bool { return active.begun.Load()+other.begun.Load() > 0 })
	if active.begun.Load() == 0 {
		active, other = other, active
	}
	p.write()
	rounds := 1
	if testenv.Accepting {
		rounds = 5
	}
	total := 0
	for range rounds {
		refused := 0
		for _, how := range []string{"killed", "cut off", "stopped", "stopped", "stopped", "stopped"} {
			if how == "stopped" && refused > 0 {
				break // it had nothing to save the time before
			}
			p.until("it consumes", 20*time.Second, func() bool { return active.says().Active && numberOf(string(active.says().Position)) > p.logged()-50 })
			if other.says().Active {
				p.t.Fatal("both are active")
			}
			time.Sleep(time.Duration(p.random.Int64N(int64(300 * time.Millisecond))))
			link := active.redis
			if kind == "mysql" {
				link = active.maria
			}
			began, at := time.Now(), p.logged()
			switch how {
			case "killed":
				p.bury(active.actor)
			case "stopped":
				active.Pause()
			case "cut off":
				link.Cut()
			}
			p.until("the other takes over", 20*time.Second, func() bool { return other.says().Active })
			took := time.Since(began)
			p.until("it goes on", 20*time.Second, func() bool { return numberOf(string(other.says().Position)) > at })
			p.t.Logf("lock on %s with a TTL of %v: the active one is %s: the other takes over after %v, and has done what was written since after %v", kind, playLock, how, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			if took > playLock+2*time.Second {
				p.t.Errorf("it took %v", took)
			}
			switch how {
			case "killed":
				active.actor = p.spawn("play-consumer", active.world)
			case "stopped":
				p.until("the other saves its position", 20*time.Second, func() bool { return numberOf(string(other.says().Saved)) > at })
				active.Resume()
				p.until("the old one knows that it is not", 20*time.Second, func() bool { return !active.says().Active })
				refused += int(active.says().Refused)
			case "cut off":
				p.until("the old one knows that it is not", 20*time.Second, func() bool { return !active.says().Active })
				link.Restore()
			}
			active, other = other, active
		}
		total += refused
	}
	p.rest()
	p.caughtUp(active.actor, other.actor)
	p.compare()
	p.t.Logf("%d saves of who had lost the lock were refused", total)
	for _, s := range []*standby{active, other} {
		if why := s.says().LastError; strings.Contains(why, "server id") {
			p.t.Errorf("it has ended: %s", why)
		}
		p.bury(s.actor)
	}
	if total == 0 {
		p.t.Error("none was: this has shown nothing")
	}
}
