package mysqlbinlog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestSettingsAreChanged: an operator changes a setting while a Consumer works, and the Source
// connects again. The Consumer raises an alert with the statement of the repair, Health fails, and
// after that statement all that has changed is fresh.
func TestSettingsAreChanged(t *testing.T) {
	eachOwn(t, func(x *world) {
		x.Do("CREATE TABLE users (id INT PRIMARY KEY, email VARCHAR(40) NOT NULL, n INT NOT NULL)",
			"INSERT INTO users VALUES (1, 'a@x', 0)")
		p, err := sourcetest.Open("mysql", x.server.DSN(x.T), testenv.SharedRedis(x.T).Addr,
			&cacheaside.Options{Prefix: x.Schema}, x.Schema, "users")
		x.Check(err)
		defer p.Close()
		var mu sync.Mutex
		var alerts []string
		c, err := canal.NewConsumer(p.Cache, x.source(), canal.NewFileCheckpoint(x.TempDir()+"/position"), p.Bindings(),
			&canal.Options{SaveEvery: 10 * time.Millisecond, OnAlert: func(a canal.Alert) {
				mu.Lock()
				defer mu.Unlock()
				alerts = append(alerts, string(a.Kind)+" "+a.Err.Error())
			}})
		x.Check(err)
		x.Consume(c)
		x.reads(p, "the row", "0")
		for i, s := range []struct{ name, wrong, right string }{{"binlog_row_metadata", "MINIMAL", "FULL"},
			{"binlog_format", "STATEMENT", "ROW"}, {"binlog_row_image", "MINIMAL", "FULL"}} {
			x.Do("SET GLOBAL " + s.name + " = '" + s.wrong + "'")
			x.Do("KILL " + x.Ask("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%' "+
				"LIMIT 1"))
			repair := "SET GLOBAL " + s.name + " = '" + s.right + "'"
			testenv.Eventually(x, "an alert of "+s.name, func() bool {
				mu.Lock()
				defer mu.Unlock()
				for _, a := range alerts {
					if contains(a, "setup ") && contains(a, repair) {
						return true
					}
				}
				return false
			})
			testenv.Eventually(x, "Health fails",
				func() bool { return errors.Is(c.Health(time.Minute), canal.ErrSetup) })
			n := string(rune('1' + 2*i))
			x.Do("UPDATE users SET n = "+n, repair)
			x.reads(p, "the change before the repair of "+s.name, n)
			testenv.Eventually(x, "Health returns nil", func() bool { return c.Health(time.Minute) == nil })
			n = string(rune('2' + 2*i))
			x.Do("UPDATE users SET n = " + n)
			x.reads(p, "the change after the repair of "+s.name, n)
		}
	})
}

// reads waits until both loaders of a process find a number in the row 1.
func (w *world) reads(p *sourcetest.Process, what, n string) {
	w.Helper()
	testenv.Eventually(w, what, func() bool {
		a, err1 := p.ByID[0].Get(w.Context(), 1)
		b, err2 := p.ByEmail[0].Get(w.Context(), "a@x")
		return err1 == nil && err2 == nil && a == "a@x "+n && b == "1 "+n
	})
}

// An operator removes the part of the binary log from which a Consumer would continue, while it is
// not connected. The Consumer raises an alert, invalidates everything, and continues.
func TestLogIsPurged(t *testing.T) {
	eachOwn(t, func(x *world) {
		x.Do("CREATE TABLE users (id INT PRIMARY KEY, email VARCHAR(40) NOT NULL, n INT NOT NULL)",
			"INSERT INTO users VALUES (1, 'a@x', 0)")
		p, err := sourcetest.Open("mysql", x.server.DSN(x.T), testenv.SharedRedis(x.T).Addr,
			&cacheaside.Options{Prefix: x.Schema}, x.Schema, "users")
		x.Check(err)
		defer p.Close()
		alerts := make(chan canal.Alert, 100)
		source := &gated{Source: x.source(), gate: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
		source.gate <- struct{}{}
		c, err := canal.NewConsumer(p.Cache, source, canal.NewFileCheckpoint(x.TempDir()+"/position"), p.Bindings(),
			&canal.Options{SaveEvery: 10 * time.Millisecond, OnAlert: func(a canal.Alert) { alerts <- a }})
		x.Check(err)
		x.Consume(c)
		x.reads(p, "the row", "0")
		x.Do("KILL " + x.Ask("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%' LIMIT 1"))
		<-source.ended
		x.Do("UPDATE users SET n = 1", "FLUSH BINARY LOGS")
		logs := x.logs()
		x.purge(logs[len(logs)-1])
		close(source.gate)
		for a := range alerts {
			if a.Kind == "position lost" && errors.Is(a.Err, canal.ErrPositionLost) {
				break
			}
		}
		x.reads(p, "the change that the log lacks", "1")
		x.Do("UPDATE users SET n = 2")
		x.reads(p, "the change after it", "2")
		if s := c.Stats(); s.PositionsLost != 1 {
			x.Errorf("lost %d positions", s.PositionsLost)
		}
		testenv.Eventually(x, "Health returns nil", func() bool { return c.Health(time.Minute) == nil })
	})
}

// gated is a Source whose runs wait for gate. It reports the end of a run to ended.
type gated struct {
	*Source
	gate, ended chan struct{}
}

func (g *gated) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	select {
	case <-g.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() {
		select {
		case g.ended <- struct{}{}:
		default:
		}
	}()
	return g.Source.Run(ctx, need, deliver)
}
