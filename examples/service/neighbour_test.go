package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/pglogical"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// neighbour is another application on the same Redis, with its own database and all defaults. Its
// filter has the same name as the service's.
type neighbour struct {
	t     *testing.T
	db    *sqlx.DB
	notes *cacheaside.Loader[int64, string]
}

const neighbourRows = 300

func startNeighbour(t *testing.T, address string) *neighbour {
	t.Helper()
	server := testenv.StartPostgres(t)
	n := &neighbour{t: t, db: sqlx.NewDb(server.DB(t), "pgx")}
	do(t, n.db.DB, "CREATE TABLE notes (id BIGINT PRIMARY KEY, text TEXT NOT NULL)",
		"INSERT INTO notes SELECT i, 'old' FROM generate_series(1, 300) i",
		"CREATE PUBLICATION cacheaside FOR TABLE notes")
	rdb := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
	cache, err := cacheaside.New(rdb, nil)
	n.must(err)
	filter, err := bloom.NewRedis(rdb, "users", 1000, 0.01, nil)
	n.must(err)
	locker, err := lock.NewRedis(rdb, nil)
	n.must(err)
	n.notes, err = cacheaside.NewLoader(cache, "note", func(ctx context.Context, id int64) (text string, err error) {
		err = n.db.GetContext(ctx, &text, "SELECT text FROM notes WHERE id = $1", id)
		return text, err
	}, &cacheaside.LoaderOptions{Filter: filter})
	n.must(err)
	source, err := pglogical.New(pglogical.Options{ConnString: server.DSN(t)})
	n.must(err)
	checkpoint, err := canal.NewSQLCheckpoint(n.db, nil)
	n.must(err)
	n.must(checkpoint.CreateTable(t.Context()))
	consumer, err := canal.NewConsumer(cache, source, checkpoint,
		[]canal.Binding{canal.Bind(n.notes, "public", "notes", canal.IntColumn[int64]("id"))},
		&canal.Options{Locker: locker, OnGap: func(context.Context) error { return nil }})
	n.must(err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- consumer.Run(ctx) }()
	go func() {
		ended <- filter.Maintain(ctx, bloom.Table[int64](n.db, "notes", "id"),
			&bloom.MaintainOptions{Check: time.Second})
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		<-ended
		n.must(errors.Join(locker.Close(), cache.Close(), filter.Close(), rdb.Close()))
	})
	consumes(t, n.db.DB)
	return n
}

func (n *neighbour) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// works changes all rows, also while a temporary table inherits from theirs. All rows are found,
// and the changes arrive.
func (n *neighbour) works() {
	n.t.Helper()
	session, err := n.db.Connx(n.t.Context())
	n.must(err)
	_, err = session.ExecContext(n.t.Context(), "CREATE TEMP TABLE scratch () INHERITS (notes)")
	n.must(err)
	do(n.t, n.db.DB, "UPDATE ONLY notes SET text = 'new'")
	for id := range int64(neighbourRows) {
		testenv.Eventually(n.t, "the change of the neighbour's row arrives", func() bool {
			text, err := n.notes.Get(n.t.Context(), id+1)
			if err != nil {
				n.t.Fatalf("the neighbour's row %d: %v", id+1, err)
			}
			return text == "new"
		})
	}
	n.must(session.Close())
}
