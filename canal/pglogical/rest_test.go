package pglogical

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// deadlineConn is a connection that records its read deadline.
type deadlineConn struct {
	net.Conn
	read time.Time
}

func (c *deadlineConn) SetReadDeadline(t time.Time) error {
	c.read = t
	return nil
}

// After a tick with slow queries, the log is read for as long as the queries took, at most a
// quarter of Timeout. The time of the queries does not count as silence of the server.
func TestSlowQueriesLeaveTimeToReadTheLog(t *testing.T) {
	const timeout = time.Minute
	config, err := pgconn.ParseConfig("host=127.0.0.1 user=u sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ queries, want time.Duration }{
		{0, tick},
		{tick / 2, tick},
		{4 * tick, 4 * tick},
		{timeout, timeout / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := &deadlineConn{}
			pg, err := pgconn.Construct(&pgconn.HijackedConn{Conn: conn, Config: config})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			r := &reader{source: &Source{options: Options{Timeout: timeout}}, conn: pg, received: began}
			time.Sleep(c.queries)
			if err := r.rest(began); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(conn.read); got != c.want || !r.due.Equal(conn.read) {
				t.Errorf("queries of %v: reads for %v, next tick in %v; want %v",
					c.queries, got, time.Until(r.due), c.want)
			}
			if silent := time.Since(r.received); silent != 0 {
				t.Errorf("queries of %v count as %v of silence", c.queries, silent)
			}
		})
	}
}
