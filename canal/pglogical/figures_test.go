//go:build accept

package pglogical

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// consume runs a Consumer of the table users until the test ends.
func (w *world) consume(p *sourcetest.Process, checkpoint string) *canal.Consumer {
	w.Helper()
	c, err := newConsumer(p, w.server.DSN(w.T), w.name, checkpoint, slog.New(slog.DiscardHandler))
	w.Check(err)
	w.Consume(c)
	return c
}

func (w *world) process() *sourcetest.Process {
	w.Helper()
	p, err := newProcess(w.server.DSN(w.T), testenv.SharedRedis(w).Addr)
	w.Check(err)
	w.Cleanup(p.Close)
	w.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)",
		"ALTER TABLE users REPLICA IDENTITY FULL")
	return p
}

// A backlog is consumed at half the speed of reading it, or more.
func TestBacklog(t *testing.T) {
	x := own(t)
	p := x.process()
	checkpoint := t.TempDir() + "/position"
	const rows = 10_000
	x.Do("INSERT INTO users SELECT n, 'm' || n || '@x', 0 FROM generate_series(0, 9999) n")
	changes := testenv.AtSize(100_000, 1_000_000)
	s := x.source()
	l := x.Listen(s, x.Need([]string{"users", "id", "email"}))
	from := l.Positions()[0]
	l.Stop()
	for wrote := 0; wrote < changes; wrote += rows {
		x.Do("DO $$BEGIN FOR i IN 0..999 LOOP UPDATE users SET n = n + 1 WHERE id BETWEEN i * 10 AND i * 10 + 9; " +
			"COMMIT; END LOOP; END$$")
	}
	var ratios []float64
	for range testenv.AtSize(1, 3) {
		bare := x.bare(from, changes)
		x.Check(canal.NewFileCheckpoint(checkpoint).Save(t.Context(), from, 0))
		began := time.Now()
		count := x.Start(s, event.Need{From: from, Tables: x.Need([]string{"users", "id", "email"}).Tables})
		count.Until("all is read", func() bool { return count.Count() >= changes })
		source := time.Since(began)
		count.Stop()
		t.Logf("%d changes: bare pglogrepl %.0f/s, the Source %.0f/s", changes, float64(changes)/bare.Seconds(),
			float64(changes)/source.Seconds())
		ratios = append(ratios, bare.Seconds()/source.Seconds())
	}
	began := time.Now()
	c := x.consume(p, checkpoint)
	testenv.Eventually(x, "all is consumed", func() bool { return c.Stats().Changes >= int64(changes) })
	t.Logf("consumed: %.0f/s", float64(changes)/time.Since(began).Seconds())
	x.AtLeastHalf("speed of the Source, as a share of bare pglogrepl's", ratios)
}

// bare returns how long pglogrepl takes to receive and parse the given number of changes.
func (w *world) bare(from event.Position, changes int) time.Duration {
	w.Helper()
	p, err := parse(from)
	w.Check(err)
	s := w.source()
	testenv.Eventually(w, "the slot is free", func() bool {
		return w.Ask("SELECT active FROM pg_replication_slots WHERE slot_name = $1", w.name) == "false"
	})
	conn, err := s.connectReplication(w.Context(), encodingUTF8)
	w.Check(err)
	defer closeNow(conn)
	began := time.Now()
	w.Check(s.start(w.Context(), conn, p.lsn, false))
	for read := 0; read < changes; {
		m, err := conn.ReceiveMessage(context.Background())
		w.Check(err)
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			w.Fatal(pgconn.ErrorResponseToPgError(e))
		}
		d, ok := m.(*pgproto3.CopyData)
		if !ok || d.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		x, err := pglogrepl.ParseXLogData(d.Data[1:])
		w.Check(err)
		parsed, err := pglogrepl.Parse(x.WALData)
		w.Check(err)
		if _, ok := parsed.(*pglogrepl.UpdateMessage); ok {
			read++
		}
	}
	return time.Since(began)
}

// A transaction of 300,000 rows does not take much memory.
func TestGiantTransaction(t *testing.T) {
	x := own(t)
	p := x.process()
	c := x.consume(p, t.TempDir()+"/position")
	rows := testenv.AtSize(50_000, 300_000)
	x.GiantTransaction(c, rows,
		fmt.Sprintf("INSERT INTO users SELECT n, repeat('x', 150) || n, 0 FROM generate_series(1, %d) n", rows))
}

// While the Consumer does not accept anything, the server does not close the connection.
func TestBusyConsumer(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, note TEXT)")
	s := x.source(func(o *Options) { o.Timeout = 4 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	batches, done := make(chan event.Batch), make(chan error, 1)
	go func() { done <- s.Run(ctx, x.Need([]string{"users", "id"}), batches) }()
	<-batches
	// more than fits into buffers
	x.Do("INSERT INTO users SELECT n, repeat('x', 1000) FROM generate_series(1, 100000) n")
	select {
	case err := <-done:
		t.Fatal(err)
	case <-time.After(15 * time.Second):
	}
	if s.Retained() <= 0 {
		t.Error(s.Retained())
	}
	for n := 0; n < 100_000; {
		select {
		case b := <-batches:
			n += len(b.Changes)
		case err := <-done:
			t.Fatal(err)
		}
	}
	stop()
	<-done
}

// The time to read the catalog does not grow with the square of the number of partitions.
func TestCatalogOfManyPartitions(t *testing.T) {
	x := own(t, "max_locks_per_transaction=1000")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id)",
		"DO $$BEGIN FOR i IN 0..999 LOOP EXECUTE format('CREATE TABLE users_%s PARTITION OF users FOR VALUES FROM "+
			"(%s) TO (%s)', i, i * 10, i * 10 + 10); END LOOP; END$$")
	conn, err := x.source().connect(t.Context())
	x.Check(err)
	defer closeNow(conn)
	s := &session{timeout: time.Minute, conn: conn}
	for _, analyze := range []bool{false, true} {
		if analyze {
			x.Do("ANALYZE")
		}
		began := time.Now()
		c, err := s.catalog(t.Context(), "cacheaside", x.Need([]string{"users", "id"}))
		x.Check(err)
		took := time.Since(began)
		t.Logf("%d relations: %v", len(c.of), took)
		if took > time.Second {
			t.Error("more than a second")
		}
	}
}
