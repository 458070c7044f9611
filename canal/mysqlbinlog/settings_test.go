package mysqlbinlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Changes are decoded correctly for each setting of the log's format.
func TestHowTheLogIsWritten(t *testing.T) {
	testenv.EachEngine(t, howTheLogIsWritten)
}

func howTheLogIsWritten(t *testing.T, e testenv.Engine) {
	compressed := []string{"log_bin_compress=ON", "log_bin_compress_min_len=10"}
	if e == testenv.MySQL {
		compressed = []string{"binlog_transaction_compression=ON"}
	}
	for name, settings := range map[string][]string{
		"compressed":       compressed,
		"without checksum": {"binlog_checksum=NONE"},
		"both":             append([]string{"binlog_checksum=NONE"}, compressed...),
	} {
		t.Run(name, func(t *testing.T) {
			x := worldOn(t, e.Shared(t))
			for _, s := range settings {
				variable, value, _ := strings.Cut(s, "=")
				x.set(variable, value)
			}
			x.Do("CREATE TABLE a (id INT PRIMARY KEY, s TEXT)",
				"CREATE TABLE m (id INT PRIMARY KEY, s TEXT) ENGINE=MyISAM")
			l := x.Listen(x.source(), x.Need([]string{"a", "id"}, []string{"m", "id"}))
			long := strings.Repeat("long ", 200)
			x.Do("INSERT INTO a VALUES (1, '"+long+"'), (2, 'y')", "UPDATE a SET id = 3 WHERE id = 1", "DELETE FROM a",
				"INSERT INTO m VALUES (1, 'z')", "ALTER TABLE a COMMENT = '"+long+"'", "TRUNCATE TABLE a",
				"INSERT INTO a SELECT seq, 's' FROM "+testenv.Numbers(1, 3)+
					" ORDER BY seq", "RENAME TABLE a TO b, m TO a")
			l.Want("insert a: 1 "+long, "insert a: 2 y", "update a: 1 "+long+" -> 3 "+long, "delete a: 2 y",
				"delete a: 3 "+long, "insert m: 1 z", "alter a", "truncate a", "insert a: 1 s", "insert a: 2 s",
				"insert a: 3 s",
				"alter a", "replace b", "alter m", "replace a")
		})
	}
}

// Of two replicas with the same number the older one gets an error that says so.
// MySQL distinguishes replicas by a UUID, which go-mysql draws at random.
func TestTwoWithTheSameServerID(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	same := func(o *Options) { o.ServerID = 12345 }
	older := x.Listen(x.source(same), need)
	newer := x.Listen(x.source(same), need)
	x.IsSetup(older.Ended(), "12345", "ServerID")
	x.Do("INSERT INTO a VALUES (1)")
	newer.Want("insert a: 1")
}

// hurried are connections whose reads end at once while the server hangs, if they have a deadline
// at all: a test need not wait until it comes.
type hurried struct {
	atMost time.Duration // that a deadline lies ahead

	mu    sync.Mutex
	hangs bool
	open  []*hurriedConn
	far   time.Duration // the furthest deadline, if it lies further ahead
}

type hurriedConn struct {
	net.Conn
	of       *hurried
	deadline bool
}

func (h *hurried) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	conn := &hurriedConn{Conn: c, of: h}
	h.open = append(h.open, conn)
	return conn, nil
}

func (h *hurriedConn) SetReadDeadline(at time.Time) error {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.deadline = !at.IsZero()
	if ahead := time.Until(at); h.deadline && ahead > h.of.atMost {
		h.of.far = max(h.of.far, ahead)
	}
	if h.deadline && h.of.hangs {
		at = time.Now()
	}
	return h.Conn.SetReadDeadline(at)
}

func (h *hurriedConn) SetDeadline(at time.Time) error {
	return errors.Join(h.SetReadDeadline(at), h.SetWriteDeadline(at))
}

func (h *hurried) hang(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hangs = on
	for _, c := range h.open {
		if on && c.deadline {
			_ = c.Conn.SetReadDeadline(time.Now()) // one that is closed is of no account
		}
	}
}

// A connection to a server that hangs is closed after Options.Timeout. The Consumer alerts once,
// reports the fault in Health, and continues when the server does.
func TestServerThatHangs(t *testing.T) { each(t, testServerThatHangs) }

func testServerThatHangs(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	timeout := testenv.Hang
	if testenv.Accepting { // the time itself
		timeout = time.Second
	}
	clock := &hurried{atMost: timeout}
	short := func(o *Options) {
		o.Timeout, o.Logger = timeout, slog.New(slog.DiscardHandler)
		if !testenv.Accepting {
			o.Dial = clock.dial
		}
	}
	l := x.Listen(x.source(short), need)

	cache := x.cache(testenv.SharedRedis(t).Client(t))
	rows, err := cacheaside.NewLoader(cache, "row", func(ctx context.Context, id int64) (n int64, err error) {
		err = x.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM a WHERE id = ?", id).Scan(&n)
		return n, err
	}, nil)
	x.Check(err)
	alerts := make(chan canal.Alert, 100)
	c, err := canal.NewConsumer(cache, x.source(short), canal.NewFileCheckpoint(t.TempDir()+"/checkpoint"),
		[]canal.Binding{canal.Bind(rows, x.Schema, "a", canal.IntColumn[int64]("id"))},
		&canal.Options{AlertAfter: 500 * time.Millisecond, OnAlert: func(a canal.Alert) { alerts <- a },
			Logger: slog.New(slog.DiscardHandler)})
	x.Check(err)
	x.Consume(c)
	testenv.Eventually(x, "it is healthy", func() bool { return c.Health(testenv.Hang) == nil })

	_, err = rows.Get(t.Context(), 1)
	x.Check(err)

	x.server.Pause()
	defer x.server.Resume()
	began := time.Now()
	clock.hang(true)
	if err := l.Ended(); err == nil || errors.Is(err, canal.ErrSetup) || errors.Is(err, canal.ErrPositionLost) {
		t.Errorf("Run has returned %v", err)
	}
	if d := time.Since(began); testenv.Accepting && d > 4*time.Second {
		t.Errorf("it was given up after %v", d)
	}
	testenv.Eventually(x, "it is alerted", func() bool { return len(alerts) > 0 })
	failures := c.Stats().Failures
	testenv.Eventually(x, "it is tried again", func() bool { return c.Stats().Failures > failures })
	if err := c.Health(testenv.Hang); err == nil || !contains(err.Error(), "source") {
		t.Errorf("Health says %v", err)
	}
	if len(alerts) > 1 { // after any number of attempts
		t.Errorf("%d alerts", len(alerts))
	}
	clock.hang(false)
	x.server.Resume()
	x.Do("INSERT INTO a VALUES (1)")
	testenv.Eventually(x, "the Consumer continues", func() bool {
		n, err := rows.Get(t.Context(), 1)
		return err == nil && n == 1 && c.Health(testenv.Hang) == nil
	})
	for len(alerts) > 0 { // another, if a server that comes back is slow to do so
		if a := <-alerts; a.Kind != "source" {
			t.Errorf("alert: %s: %v", a.Kind, a.Err)
		}
	}
	if s := c.Stats(); s.PositionsLost > 0 {
		t.Errorf("%+v", s)
	}
	clock.mu.Lock()
	defer clock.mu.Unlock()
	if clock.far > 0 {
		t.Errorf("a deadline was %v ahead, with a Timeout of %v", clock.far, timeout)
	}
}

// Sessions with any settings leave no stale keys.
func TestSessionsOfAllSettings(t *testing.T) { each(t, testSessionsOfAllSettings) }

func testSessionsOfAllSettings(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, email VARCHAR(50) UNIQUE, n INT, b BLOB)")
	cache := x.cache(testenv.SharedRedis(t).Client(t))
	load := func(column string) func(context.Context, string) (string, error) {
		return func(ctx context.Context, key string) (v string, err error) {
			err = x.DB.QueryRowContext(ctx, "SELECT CONCAT_WS(' ', id, email, n, b) FROM a WHERE "+column+" = ?",
				key).Scan(&v)
			return v, err
		}
	}
	byID, err := cacheaside.NewLoader(cache, "id", load("id"), nil)
	x.Check(err)
	byEmail, err := cacheaside.NewLoader(cache, "email", load("email"), nil)
	x.Check(err)
	c, err := canal.NewConsumer(cache, x.source(), canal.NewFileCheckpoint(t.TempDir()+"/checkpoint"), []canal.Binding{
		canal.Bind(byID, x.Schema, "a", canal.TextColumn[string]("id")),
		canal.Bind(byEmail, x.Schema, "a", canal.TextColumn[string]("email")),
	}, &canal.Options{Logger: slog.New(slog.DiscardHandler)})
	x.Check(err)
	x.Consume(c)
	ids, emails := []string{"1", "2", "3", "4"}, []string{"a", "b", "c", "d", "e"}
	for _, setting := range [][2]string{{"binlog_format", "STATEMENT"}, {"binlog_format", "MIXED"},
		{"binlog_row_image", "MINIMAL"}, {"binlog_row_image", "NOBLOB"}, {"sql_mode", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"}} {
		for i, s := range []string{
			"INSERT INTO a VALUES (1, 'a', 1, 'x'), (2, 'b', 1, 'x'), (3, NULL, 1, NULL)", "UPDATE a SET n = n + 1",
			"UPDATE a SET email = 'c' WHERE id = 1", "UPDATE a SET email = 'a' WHERE email = 'b'",
			"UPDATE a SET id = 4 WHERE id = 1",
			"REPLACE INTO a VALUES (2, 'c', 5, 'y')",
			"INSERT INTO a VALUES (2, 'd', 6, 'z') ON DUPLICATE KEY UPDATE email = 'e', b = 'zz'",
			"UPDATE a SET b = CONCAT('it\\'s ', n)", "DELETE FROM a WHERE email = 'e'", "DELETE FROM a",
		} {
			if setting[0] == "sql_mode" {
				s = strings.ReplaceAll(s, "\\'", "''")
			}
			for range 2 {
				_, _ = byID.GetMany(t.Context(), ids)
				_, _ = byEmail.GetMany(t.Context(), emails)
			}
			x.session(setting[0], setting[1], s)
			want := fmt.Sprint(x.rows("id", ids, load), x.rows("email", emails, load))
			var got string
			for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
				a, _ := byID.GetMany(t.Context(), ids)
				b, _ := byEmail.GetMany(t.Context(), emails)
				if got = fmt.Sprint(a, b); got == want {
					break
				}
				if time.Since(began) > testenv.Hang {
					t.Fatalf("%s %s, statement %d: read\n%s\nis\n%s", setting[0], setting[1], i, got, want)
				}
			}
		}
	}
	if s := c.Stats(); s.Misunderstood == 0 {
		t.Errorf("%+v", s)
	}
}

// rows are those of the keys, by the keys.
func (w *world) rows(
	column string, keys []string, load func(string) func(context.Context, string) (string, error),
) map[string]string {
	all := map[string]string{}
	for _, k := range keys {
		if v, err := load(column)(w.Context(), k); err == nil {
			all[k] = v
		}
	}
	return all
}
