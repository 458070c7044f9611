package mysqlbinlog_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/lock"
)

// A Consumer that invalidates the users whose rows any program changes. It needs a server with
// log_bin; cacheaside schema mysql prints the settings and the rights.
func ExampleNew() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db := sqlx.MustOpen("mysql", "shop@tcp(db:3306)/shop")
	rdb := redis.NewClient(&redis.Options{Addr: "redis:6379", ContextTimeoutEnabled: true})
	cache, err := cacheaside.New(rdb, nil)
	if err != nil {
		log.Fatal(err)
	}
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (name string, err error) {
		return name, db.GetContext(ctx, &name, "SELECT name FROM users WHERE id = ?", id)
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	source, err := mysqlbinlog.New(mysqlbinlog.Options{Addr: "db:3306", User: "cacheaside_log", Password: "secret"})
	if err != nil {
		log.Fatal(err)
	}
	checkpoint, err := canal.NewSQLCheckpoint(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	parked, err := parking.NewTable(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := lock.NewRedis(rdb, nil) // one process at a time consumes
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := canal.NewConsumer(cache, source, checkpoint, []canal.Binding{
		canal.Bind(users, "shop", "users", canal.IntColumn[int64]("id")),
	}, &canal.Options{Parking: parked, Locker: locker})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(consumer.Run(ctx)) // until the process is stopped
}
