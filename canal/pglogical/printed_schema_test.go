package pglogical

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// TestPrintedSchemaIsEnough: after an administrator has executed what `cacheaside schema postgres`
// prints, a program with the printed users writes, relays, locks and consumes.
func TestPrintedSchemaIsEnough(t *testing.T) {
	p := testenv.SharedPostgres(t)
	x := &world{server: p, name: p.Database(t)}
	x.T, x.DB, x.Schema = t, p.DB(t), "public"
	app, reader := "app_"+x.name, "log_"+x.name
	t.Cleanup(func() {
		x.dropSlot()
		x.Do("DROP OWNED BY "+app, "DROP ROLE "+app, "DROP ROLE "+reader)
	})
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO users VALUES (1, 0)")
	printed, err := exec.CommandContext(t.Context(), "go", "run", "-C", "../..", "./cmd/cacheaside", "schema",
		"postgres", "--tables", "users", "--slot", x.name, "--app-role", app, "--log-role", reader).Output()
	x.Check(err)
	for part := range strings.SplitSeq(string(printed), "\n\n") { // the slot needs a transaction of its own
		x.Do(part)
	}
	x.Do("GRANT SELECT, UPDATE ON users TO " + app)

	dsnOf := func(user string) string { return strings.Replace(p.DSN(t), p.User+"@", user+"@", 1) }
	db, err := sqlx.Open("pgx", dsnOf(app))
	x.Check(err)
	t.Cleanup(func() { db.Close() })
	cache, err := cacheaside.New(testenv.SharedRedis(t).Client(t), &cacheaside.Options{Prefix: x.name})
	x.Check(err)
	t.Cleanup(func() { cache.Close() })
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (n int, err error) {
		return n, db.GetContext(ctx, &n, "SELECT n FROM users WHERE id = $1", id)
	}, nil)
	x.Check(err)
	outbox, err := sqloutbox.New(db, sqloutbox.Postgres, nil)
	x.Check(err)
	writer, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
	x.Check(err)
	t.Cleanup(func() { writer.Close() })
	locker, err := pglock.New(db.DB, nil)
	x.Check(err)
	t.Cleanup(func() { locker.Close() })
	checkpoint, err := canal.NewSQLCheckpoint(db, nil)
	x.Check(err)
	parked, err := parking.NewTable(db, nil)
	x.Check(err)
	source := x.source(func(o *Options) { o.ConnString = dsnOf(reader) })
	consumer, err := canal.NewConsumer(cache, source, checkpoint, []canal.Binding{
		canal.Bind(users, "public", "users", canal.IntColumn[int64]("id")),
	}, &canal.Options{Locker: locker, Parking: parked, SaveEvery: 100 * time.Millisecond})
	x.Check(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	reads := func(step string, want int) {
		t.Helper()
		testenv.Eventually(t, step, func() bool {
			n, err := users.Get(t.Context(), 1)
			x.Check(err)
			return n == want
		})
	}
	reads("the row", 0)
	x.Check(writer.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET n = 1")
		return err
	}, users.Key(1)))
	reads("the write", 1)
	testenv.Eventually(t, "the consumer is active", func() bool { return consumer.Stats().Active })
	x.Do("UPDATE users SET n = 2")
	reads("the change of another program", 2)
	testenv.Eventually(t, "the position is saved", func() bool { return consumer.Stats().Saved != "" })
	testenv.Eventually(t, "the outbox is empty", func() bool {
		depth, err := outbox.Depth(t.Context())
		x.Check(err)
		return depth.Items == 0
	})
	if s := consumer.Stats(); s.Misunderstood > 0 || s.Parked > 0 {
		t.Errorf("%+v", s)
	}
}
