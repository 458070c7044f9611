//go:build accept

package bench

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// backlog is a number of row changes in the log of a server, after a position.
type backlog struct {
	*testing.T
	server   *testenv.SQLServer
	db       *sql.DB
	from     string // a GTID set
	serverID string
	changes  int
}

// newBacklog writes a backlog of transactions of ten rows, every tenth of them of one row.
func newBacklog(t *testing.T, changes int) *backlog {
	t.Helper()
	const rows = 10_000
	m := testenv.SharedMariaDB(t)
	x := &backlog{T: t, server: m, db: m.DB(t), changes: changes}
	for _, statement := range []string{
		"CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(50), n INT, note VARCHAR(100))",
		fmt.Sprintf("INSERT INTO users SELECT seq, 'a name', 0, 'a note that is somewhat longer than a name is' FROM "+
			"seq_1_to_%d", rows),
	} {
		if _, err := x.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.db.QueryRow("SELECT @@gtid_binlog_pos, @@server_id").Scan(&x.from, &x.serverID); err != nil {
		t.Fatal(err)
	}
	type change struct{ first, last int }
	queue := make(chan change)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for c := range queue {
				if _, err := x.db.Exec("UPDATE users SET n = n + 1 WHERE id BETWEEN ? AND ?", c.first,
					c.last); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i, wrote := 0, 0; wrote < changes; i++ {
		n := 10
		if i%10 == 0 {
			n = 1
		}
		n = min(n, changes-wrote)
		first := wrote%(rows-10) + 1
		queue <- change{first, first + n - 1}
		wrote += n
	}
	close(queue)
	wg.Wait()
	return x
}

// bare returns the time that go-mysql takes to read the backlog.
func (b *backlog) bare() time.Duration {
	b.Helper()
	host, port, _ := net.SplitHostPort(b.server.Addr)
	n, _ := strconv.Atoi(port)
	s := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{ServerID: 4711, Flavor: mysql.MariaDBFlavor,
		Host: host, Port: uint16(n), User: b.server.User, Logger: slog.New(slog.DiscardHandler),
		DisableRetrySync: true})
	defer s.Close()
	set := must(mysql.ParseMariadbGTIDSet(b.from))(b.T)
	began := time.Now()
	events := must(s.StartSyncGTID(set))(b.T)
	for read := 0; read < b.changes; {
		e := must(events.GetEvent(b.Context()))(b.T)
		if r, ok := e.Event.(*replication.RowsEvent); ok {
			read += len(r.Rows) / 2 // each row before and after the change
		}
	}
	return time.Since(began)
}

// consumed returns the time that a Consumer takes to invalidate all its rows.
func (b *backlog) consumed(redis *testenv.Redis) time.Duration {
	b.Helper()
	cache := must(cacheaside.New(redisClient(b.T, redis), nil))(b.T)
	defer cache.Close()
	users := must(cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (name string, err error) {
		err = b.db.QueryRowContext(ctx, "SELECT name FROM users WHERE id = ?", id).Scan(&name)
		return name, err
	}, nil))(b.T)
	source := must(mysqlbinlog.New(mysqlbinlog.Options{Addr: b.server.Addr, User: b.server.User}))(b.T)
	checkpoint := canal.NewFileCheckpoint(b.TempDir() + "/position")
	if err := checkpoint.Save(b.Context(), event.Position("mariadb:"+b.serverID+"@"+b.from), 0); err != nil {
		b.Fatal(err)
	}
	c := must(canal.NewConsumer(cache, source, checkpoint,
		[]canal.Binding{canal.Bind(users, b.server.Database(b.T), "users", canal.IntColumn[int64]("id"))}, nil))(b.T)
	ctx, stop := context.WithTimeout(b.Context(), time.Minute)
	defer stop()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- c.Run(ctx) }()
	for c.Stats().Changes < int64(b.changes) {
		if ctx.Err() != nil {
			b.Fatalf("%d of %d changes are consumed within a minute", c.Stats().Changes, b.changes)
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began)
	stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	if s := c.Stats(); s.Changes != int64(b.changes) || s.Failures != 0 {
		b.Errorf("got %d changes, want %d; %d failures", s.Changes, b.changes, s.Failures)
	}
	return took
}

// TestBacklog measures the consumption of a backlog of the binary log.
func TestBacklog(t *testing.T) {
	x := newBacklog(t, size(300_000, 5000))
	redis := testenv.SharedRedis(t)
	var bare, consumed, ratio []float64
	for run := range size(7, 1) {
		var b, c time.Duration
		turns := []func(){func() { b = x.bare() }, func() { c = x.consumed(redis) }}
		if run%2 == 1 {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			turn()
		}
		bare, consumed = append(bare, float64(x.changes)/b.Seconds()), append(consumed, float64(x.changes)/c.Seconds())
		ratio = append(ratio, b.Seconds()/c.Seconds())
	}
	table := &Table{Section: 14, Title: "A backlog of the binary log",
		Text: fmt.Sprintf("Time to read %s changed rows, most in transactions of ten, from the binary log of "+
			"MariaDB. Bare replication decodes them and does nothing else. A Consumer invalidates the key of each "+
			"row in Redis and in all processes, and saves its position in a file.", thousands(fmt.Sprint(x.changes))),
		Head: []string{"", "rows a second", "middle half", "of bare replication"}}
	table.Row("go-mysql, bare replication", median(bare), spread(bare), 1.0)
	table.Row(own+": canal.Consumer, mysqlbinlog.Source", median(consumed), spread(consumed), median(ratio))
	publish(t, table)
}
