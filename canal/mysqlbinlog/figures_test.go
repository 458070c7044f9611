//go:build accept

package mysqlbinlog

import (
	"log/slog"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// How long after its commit a change is seen in the memory of another process, at 1,000 changes a
// second.
func TestLatency(t *testing.T) { each(t, testLatency) }

func testLatency(x *world) {
	t := x.T
	rdb := testenv.SharedRedis(t).Client(t)
	a, b := x.process(rdb, nil), x.process(rdb, nil)
	const rows = 2000
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(50))",
		"INSERT INTO users SELECT seq, '0' FROM "+testenv.Numbers(1, rows))
	x.consume(a, canal.NewFileCheckpoint(t.TempDir()+"/position"), nil)
	changes := testenv.AtSize(3000, 20000)
	var late []time.Duration
	done := make(chan time.Duration, changes)
	slots := make(chan struct{}, 200)
	x.DB.SetMaxOpenConns(50)
	x.DB.SetMaxIdleConns(50)
	write, err := x.DB.PrepareContext(t.Context(), "UPDATE users SET name = ? WHERE id = ?")
	x.Check(err)
	defer write.Close()
	began := time.Now()
	for n := range changes {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Millisecond)))
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			id, name := int64(n%rows+1), strconv.Itoa(n)
			for _, p := range []*process{a, b} {
				_, _ = p.users.Get(t.Context(), id)
			}
			if _, err := write.Exec(name, id); err != nil {
				t.Error(err)
				done <- 0
				return
			}
			committed := time.Now()
			for {
				v, err := b.users.Get(t.Context(), id)
				if err != nil {
					t.Error(err)
					break
				}
				if seen, _ := strconv.Atoi(v); seen >= n {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			done <- time.Since(committed)
		}()
	}
	took := time.Since(began)
	for range changes {
		late = append(late, <-done)
	}
	slices.Sort(late)
	at := func(q float64) time.Duration { return late[int(q*float64(len(late)-1))].Round(100 * time.Microsecond) }
	t.Logf("%d changes at %.0f a second: another process serves the new value %v (p50), %v (p99), %v (most) after "+
		"the commit", changes, float64(changes)/took.Seconds(), at(.5), at(.99), at(1))
	if at(.99) > 100*time.Millisecond {
		t.Error("p99 is above 100 ms")
	}
}

// A backlog is consumed at half the speed of reading it, or more.
func TestBacklog(t *testing.T) { eachOwn(t, backlog) }

func backlog(x *world) {
	t := x.T
	rdb := testenv.SharedRedis(t).Client(t)
	const rows = 10_000
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(50), n INT, note VARCHAR(100))",
		"INSERT INTO users SELECT seq, 'a name', 0, 'a note that is somewhat longer than a name is' FROM "+
			testenv.Numbers(1, rows))
	flavor, variable := "mariadb", "gtid_binlog_pos"
	if x.mysql() {
		flavor, variable = "mysql", "gtid_executed"
	}
	var from string
	x.Check(x.DB.QueryRow("SELECT @@global." + variable).Scan(&from))
	changes := testenv.AtSize(200_000, 1_000_000)
	wrote := 0
	x.DB.SetMaxOpenConns(4)
	x.DB.SetMaxIdleConns(4)
	slots := make(chan struct{}, 4)
	for wrote < changes {
		n := 1
		if wrote%100 != 0 { // transactions of one row, and of ten
			n = 10
		}
		n = min(n, changes-wrote)
		first := wrote%(rows-10) + 1
		wrote += n
		slots <- struct{}{}
		go func() {
			if _, err := x.DB.Exec("UPDATE users SET n = n + 1 WHERE id BETWEEN ? AND ?", first,
				first+n-1); err != nil {
				t.Error(err)
			}
			<-slots
		}()
	}
	for range 4 {
		slots <- struct{}{}
	}
	var ratios []float64
	for range testenv.AtSize(1, 3) {
		bare := x.bare(flavor, from, changes)
		p := x.process(rdb, nil)
		checkpoint := canal.NewFileCheckpoint(t.TempDir() + "/position")
		x.Check(checkpoint.Save(t.Context(), event.Position(flavor+":"+from), 0))
		began := time.Now()
		c := x.consume(p, checkpoint, nil)
		testenv.Eventually(x, "all is consumed", func() bool { return c.Stats().Changes >= int64(changes) })
		took := time.Since(began)
		t.Logf("%d changes: bare replication %.0f/s, consumed %.0f/s", changes, float64(changes)/bare.Seconds(),
			float64(changes)/took.Seconds())
		ratios = append(ratios, bare.Seconds()/took.Seconds())
	}
	x.AtLeastHalf("speed of the Consumer, as a share of bare replication's", ratios)
}

// bare returns how long go-mysql alone takes for the given number of changes.
func (w *world) bare(flavor, from string, changes int) time.Duration {
	w.Helper()
	host, port, _ := net.SplitHostPort(w.server.Addr)
	n, _ := strconv.Atoi(port)
	s := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{ServerID: 4711, Flavor: flavor, Host: host,
		Port: uint16(n), User: w.server.User, Logger: slog.New(slog.DiscardHandler), DisableRetrySync: true})
	defer s.Close()
	set, err := mysql.ParseGTIDSet(flavor, from)
	w.Check(err)
	began := time.Now()
	events, err := s.StartSyncGTID(set)
	w.Check(err)
	for read := 0; read < changes; {
		e, err := events.GetEvent(w.Context())
		w.Check(err)
		if r, ok := e.Event.(*replication.RowsEvent); ok {
			read += len(r.Rows) / 2
		}
	}
	return time.Since(began)
}

// A transaction of 300,000 rows does not take much memory, and what comes after it is not kept
// waiting.
func TestGiantTransaction(t *testing.T) { each(t, testGiantTransaction) }

func testGiantTransaction(x *world) {
	t := x.T
	rdb := testenv.SharedRedis(t).Client(t)
	p := x.process(rdb, nil)
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(200))")
	c := x.consume(p, canal.NewFileCheckpoint(t.TempDir()+"/position"), nil)
	rows := testenv.AtSize(50_000, 300_000)
	x.GiantTransaction(c, rows+1, "INSERT INTO users SELECT seq, REPEAT('x', 150) FROM "+testenv.Numbers(1, rows),
		"INSERT INTO users VALUES (0, 'after it')")
}
