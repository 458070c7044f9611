package mysqlbinlog

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// TestPrintedSchemaIsEnough: after an administrator has executed what `cacheaside schema mysql`
// prints, a program with the printed users writes, relays, locks and consumes.
func TestPrintedSchemaIsEnough(t *testing.T) {
	each(t, func(x *world) {
		name := x.server.Database(x.T)
		app, reader := "app_"+name, "log_"+name
		x.Cleanup(func() { x.Do("DROP USER "+app, "DROP USER "+reader) })
		x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO users VALUES (1, 0)")
		printed, err := exec.CommandContext(x.Context(), "go", "run", "-C", "../..", "./cmd/cacheaside", "schema",
			"mysql", "--tables", "users", "--app-role", app, "--log-role", reader).Output()
		x.Check(err)
		for part := range strings.SplitSeq(string(printed), "\n\n") {
			if !strings.HasPrefix(part[strings.LastIndexByte(strings.TrimSpace(part), '\n')+1:], "--") {
				x.Do(part)
			}
		}
		x.Do("GRANT SELECT, UPDATE ON users TO "+app, "ALTER USER "+app+" ACCOUNT UNLOCK",
			"ALTER USER "+reader+" ACCOUNT UNLOCK")
		x.printedIsEnough(app, reader)
	})
}

// printedIsEnough writes and consumes as the printed users.
func (w *world) printedIsEnough(app, reader string) {
	t := w.T
	dsn, err := mysql.ParseDSN(w.server.DSN(t))
	w.Check(err)
	dsn.User = app
	db, err := sqlx.Open("mysql", dsn.FormatDSN())
	w.Check(err)
	t.Cleanup(func() { db.Close() })
	cache, err := cacheaside.New(testenv.SharedRedis(t).Client(t), &cacheaside.Options{Prefix: w.Schema})
	w.Check(err)
	t.Cleanup(func() { cache.Close() })
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (n int, err error) {
		return n, db.GetContext(ctx, &n, "SELECT n FROM users WHERE id = ?", id)
	}, nil)
	w.Check(err)
	outbox, err := sqloutbox.New(db, sqloutbox.MySQL, nil)
	w.Check(err)
	writer, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
	w.Check(err)
	t.Cleanup(func() { writer.Close() })
	locker, err := mysqllock.New(db.DB, nil)
	w.Check(err)
	t.Cleanup(func() { locker.Close() })
	checkpoint, err := canal.NewSQLCheckpoint(db, nil)
	w.Check(err)
	parked, err := parking.NewTable(db, nil)
	w.Check(err)
	source := w.source(func(o *Options) { o.User = reader })
	consumer, err := canal.NewConsumer(cache, source, checkpoint, []canal.Binding{
		canal.Bind(users, w.Schema, "users", canal.IntColumn[int64]("id")),
	}, &canal.Options{Locker: locker, Parking: parked, SaveEvery: 100 * time.Millisecond})
	w.Check(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	reads := func(step string, want int) {
		t.Helper()
		testenv.Eventually(t, step, func() bool {
			n, err := users.Get(t.Context(), 1)
			w.Check(err)
			return n == want
		})
	}
	reads("the row", 0)
	w.Check(writer.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET n = 1")
		return err
	}, users.Key(1)))
	reads("the write", 1)
	testenv.Eventually(t, "the consumer is active", func() bool { return consumer.Stats().Active })
	w.Do("UPDATE users SET n = 2")
	reads("the change of another program", 2)
	testenv.Eventually(t, "the position is saved", func() bool { return consumer.Stats().Saved != "" })
	testenv.Eventually(t, "the outbox is empty", func() bool {
		depth, err := outbox.Depth(t.Context())
		w.Check(err)
		return depth.Items == 0
	})
	if s := consumer.Stats(); s.Misunderstood > 0 || s.Parked > 0 {
		t.Errorf("%+v", s)
	}
}
