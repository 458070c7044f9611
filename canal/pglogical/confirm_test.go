package pglogical

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"

	"github.com/cacheaside/cacheaside/canal"
)

// A position that is only in memory is not confirmed by the Run that begins there.
func TestPositionIsNotSavedByResuming(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	confirmed := func() string {
		return x.Ask("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1", x.name)
	}
	l := x.Listen(x.source(), need)
	start, first := l.Positions()[0], confirmed()
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
	need.From = saved(l)
	l = x.Listen(x.source(), need)
	asksAgain(l)
	l.Stop()
	if got := confirmed(); got != first {
		t.Errorf("%s is confirmed, not %s", got, first)
	}
	need.From = start
	x.Listen(x.source(), need).Want("insert users: 1")
}

// tap calls f before a message with a text is sent.
type tap struct {
	net.Conn
	text string
	f    func()
}

func (t *tap) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(t.text)) {
		t.f()
	}
	return t.Conn.Write(b)
}

// Another reader can advance the slot until the replication starts.
func TestSlotIsAdvancedBeforeTheStart(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	l := x.Listen(x.source(), need)
	need.From = l.Positions()[0]
	l.Stop()
	s := x.source(func(o *Options) {
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &tap{c, "START_REPLICATION", func() {
				x.Do("INSERT INTO users VALUES (1)",
					"SELECT pg_replication_slot_advance('"+x.name+"', pg_current_wal_lsn())")
			}}, err
		}
	})
	if err := x.Start(s, need).Ended(); !errors.Is(err, canal.ErrPositionLost) {
		t.Error(err)
	}
}
