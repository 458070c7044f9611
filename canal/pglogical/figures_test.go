//go:build accept

package pglogical

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// atSize is n in the long runs whose figures are reported, and few otherwise.
func atSize(few, n int) int {
	if testenv.Accepting {
		return n
	}
	return few
}

// consume runs a Consumer of the table users until the test ends.
func (w *world) consume(p *process, checkpoint string) *canal.Consumer {
	w.Helper()
	c, err := p.consumer(w.server.DSN(w.T), w.name, checkpoint, slog.New(slog.DiscardHandler))
	w.check(err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.Cleanup(func() {
		stop()
		w.check(<-done)
	})
	testenv.Eventually(w, "the Consumer has begun", func() bool { return c.Stats().Lag >= 0 })
	return c
}

func (w *world) process() *process {
	w.Helper()
	p, err := newProcess(w.server.DSN(w.T), testenv.SharedRedis(w).Addr)
	w.check(err)
	w.Cleanup(p.close)
	w.do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)", "ALTER TABLE users REPLICA IDENTITY FULL")
	return p
}

// A backlog is consumed at half the speed of reading it, or more.
func TestBacklog(t *testing.T) {
	x := own(t)
	p := x.process()
	checkpoint := t.TempDir() + "/position"
	const rows = 10_000
	x.do("INSERT INTO users SELECT n, 'm' || n || '@x', 0 FROM generate_series(0, 9999) n")
	changes := atSize(100_000, 1_000_000)
	s := x.source()
	l := x.listen(s, x.need([]string{"users", "id", "email"}))
	from := l.positions()[0]
	l.end()
	for wrote := 0; wrote < changes; wrote += rows {
		x.do("DO $$BEGIN FOR i IN 0..999 LOOP UPDATE users SET n = n + 1 WHERE id BETWEEN i * 10 AND i * 10 + 9; COMMIT; END LOOP; END$$")
	}
	var ratios []float64
	for range atSize(1, 3) {
		bare := x.bare(from, changes)
		x.check(canal.NewFileCheckpoint(checkpoint).Save(t.Context(), from, 0))
		began := time.Now()
		count := x.run(s, event.Need{From: from, Tables: x.need([]string{"users", "id", "email"}).Tables})
		count.until("all is read", func() bool {
			n := 0
			for _, b := range count.batches {
				n += len(b.Changes)
			}
			return n >= changes
		})
		source := time.Since(began)
		count.end()
		t.Logf("%d changes: bare pglogrepl %.0f/s, the Source %.0f/s", changes, float64(changes)/bare.Seconds(), float64(changes)/source.Seconds())
		ratios = append(ratios, bare.Seconds()/source.Seconds())
	}
	slices.Sort(ratios)
	t.Logf("read at %.2f of the speed of bare pglogrepl (median)", ratios[len(ratios)/2])
	began := time.Now()
	c := x.consume(p, checkpoint)
	testenv.Eventually(x, "all is consumed", func() bool { return c.Stats().Changes >= int64(changes) })
	t.Logf("consumed: %.0f/s", float64(changes)/time.Since(began).Seconds())
	if ratios[len(ratios)/2] < 0.5 && len(ratios) > 1 {
		t.Error("less than half")
	}
}

// bare returns how long pglogrepl takes to receive and parse so many changes.
func (w *world) bare(from event.Position, changes int) time.Duration {
	w.Helper()
	p, err := parse(from)
	w.check(err)
	s := w.source()
	testenv.Eventually(w, "the slot is free", func() bool {
		return w.ask("SELECT active FROM pg_replication_slots WHERE slot_name = $1", w.name) == "false"
	})
	conn, err := s.connect(w.Context(), true)
	w.check(err)
	defer closeNow(conn)
	began := time.Now()
	w.check(s.start(w.Context(), conn, p.lsn))
	for read := 0; read < changes; {
		m, err := conn.ReceiveMessage(context.Background())
		w.check(err)
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			w.Fatal(pgconn.ErrorResponseToPgError(e))
		}
		d, ok := m.(*pgproto3.CopyData)
		if !ok || d.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		x, err := pglogrepl.ParseXLogData(d.Data[1:])
		w.check(err)
		parsed, err := pglogrepl.Parse(x.WALData)
		w.check(err)
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
	rows := atSize(50_000, 300_000)
	runtime.GC()
	var idle runtime.MemStats
	runtime.ReadMemStats(&idle)
	var most atomic.Uint64
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			time.Sleep(5 * time.Millisecond)
		}
	}()
	began := time.Now()
	if _, err := x.db.Exec("INSERT INTO users SELECT n, repeat('x', 150) || n, 0 FROM generate_series(1, $1) n", rows); err != nil {
		t.Fatal(err)
	}
	wrote := time.Now()
	testenv.Eventually(x, "all is consumed", func() bool { return c.Stats().Changes >= int64(rows) })
	stop()
	<-watched
	above := (int64(most.Load()) - int64(idle.HeapInuse)) >> 20
	t.Logf("a transaction of %d rows took %v, and was consumed %v later; at most %d MB more of heap in use", rows, wrote.Sub(began).Round(time.Millisecond), time.Since(wrote).Round(time.Millisecond), above)
	if above > 64 {
		t.Error("more than 64 MB")
	}
}

// While the Consumer does not accept anything, the server does not close the connection.
func TestBusyConsumer(t *testing.T) {
	x := own(t)
	x.do("CREATE TABLE users (id INT PRIMARY KEY, note TEXT)")
	s := x.source(func(o *Options) { o.Timeout = 4 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	batches, done := make(chan event.Batch), make(chan error, 1)
	go func() { done <- s.Run(ctx, x.need([]string{"users", "id"}), batches) }()
	<-batches
	x.do("INSERT INTO users SELECT n, repeat('x', 1000) FROM generate_series(1, 100000) n") // more than fits into buffers
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
