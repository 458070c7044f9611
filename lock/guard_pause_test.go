package lock_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func init() { testenv.RegisterChild("holder", holder) }

// holder is a process that acquires the lock, is suspended while it waits for a line, and then
// continues as if nothing had happened.
func holder() {
	ctx := context.Background()
	db, _ := sql.Open("mysql", os.Getenv("DSN"))
	defer db.Close()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS")})
	defer rdb.Close()
	want := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	want(db.PingContext(ctx))
	locker, err := lock.NewRedis(rdb, &lock.Options{Timeout: 10 * time.Second})
	want(err)
	defer locker.Close()
	var lease *lock.Lease
	// Requests for such a short life have little time.
	for err = errors.New("not yet"); err != nil; {
		lease, err = locker.Acquire(ctx, "account", &lock.AcquireOptions{TTL: time.Second})
	}
	fmt.Println("holds it")
	bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Println("thinks so still:", lease.Context().Err() == nil)
	fmt.Println("without a guard:", rdb.Set(ctx, "unguarded", "old", 0).Err())
	fmt.Println("sql:", pay(ctx, db, accounts, 1, lease.Token(), 101))
	fmt.Println("redis:", lock.SetFenced(ctx, rdb, "guarded", "old", lease.Token(), time.Minute))
	<-lease.Context().Done()
	fmt.Println("told:", errors.Is(context.Cause(lease.Context()), lock.ErrLost))
	fmt.Println("released:", errors.Is(lease.Release(), lock.ErrLost))
}

// No lock can stop a suspended holder that resumes without knowing how late it is. The targets of
// its writes refuse them.
func TestPausedHolder(t *testing.T) {
	server, mariadb := testenv.SharedRedis(t), testenv.SharedMariaDB(t)
	db, rdb := withAccounts(t, mariadb.DB(t)), server.Client(t)
	first := testenv.SpawnChild(t, "holder", "DSN="+mariadb.DSN(t), "REDIS="+server.Addr)
	says(t, first, "holds it")
	first.Pause()

	locker, err := lock.NewRedis(rdb, locktest.Patient())
	locktest.Want(t, "a locker", err, nil)
	defer locker.Close()
	began := time.Now()
	lease, err := locker.Acquire(t.Context(), "account", nil)
	locktest.Want(t, "acquire what a suspended process has", err, nil)
	t.Logf("the second holder waited %v", time.Since(began))
	locktest.Want(t, "write by SQL", pay(lease.Context(), db, accounts, 1, lease.Token(), 102), nil)
	locktest.Want(t, "write to Redis", lock.SetFenced(lease.Context(), rdb, "guarded", "new", lease.Token(),
		time.Minute), nil)
	locktest.Want(t, "write without a guard", rdb.Set(t.Context(), "unguarded", "new", 0).Err(), nil)

	io.WriteString(first.Stdin, "\n") // the first line that it reads
	first.Resume()
	line, err := first.ReadLine(testenv.Hang)
	locktest.Want(t, "read", err, nil)
	t.Log("the first holder, resumed, ", line) // its timer and its work race
	says(t, first, "without a guard: <nil>")
	says(t, first, "sql: lock: Guard: "+strings.TrimPrefix(lock.ErrStale.Error(), "lock: "))
	says(t, first, "redis: lock: SetFenced: "+strings.TrimPrefix(lock.ErrStale.Error(), "lock: "))
	says(t, first, "told: true")
	says(t, first, "released: true")
	locktest.Want(t, "the first holder's end", first.Wait(), nil)

	wantValue(t, rdb, "unguarded", "old") // without a fence, the late write wins
	wantValue(t, rdb, "guarded", "new")
	wantBalance(t, db, 102)
	locktest.Want(t, "the second holder still has it", lease.Context().Err(), nil)
	locktest.Want(t, "release", lease.Release(), nil)
}

func says(t testing.TB, c *testenv.Child, what string) {
	t.Helper()
	line, err := c.ReadLine(testenv.Hang)
	if strings.TrimSpace(line) != what || err != nil {
		t.Fatalf("the process prints %q (%v), want %q", line, err, what)
	}
}
