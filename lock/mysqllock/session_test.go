package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// TestSettingsOfSessions: no setting of a session matters. Above all, no session has another time.
func TestSettingsOfSessions(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		o := &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: testenv.Hang / 4}
		other := locker(t, mysqllock.New, m.DB(t), o)
		parent := t
		var last int64
		for i, settings := range m.Engine.Sessions() {
			good := t.Run(settings, func(t *testing.T) {
				mine, theirs := open(t, m.SessionDSN(parent, settings)), open(t, m.SessionDSN(parent, settings))
				a, b := locker(t, mysqllock.New, mine, o), locker(t, mysqllock.New, theirs, o)
				name := fmt.Sprint("own", i)
				for range 2 {
					for _, name := range []string{"all", name} {
						lease, err := a.Acquire(within(t, patience), name, nil)
						check(t, err)
						if name == "all" && lease.Token() <= last {
							t.Errorf("token %d after %d", lease.Token(), last)
						}
						last = max(last, lease.Token())
						if left := time.Until(lease.Deadline()); left < 5*time.Minute || left > 10*time.Minute {
							t.Errorf("a life of %v", left)
						}
						for _, l := range []*lock.Locker{b, other} {
							if _, err := l.TryAcquire(within(t, patience), name, nil); !errors.Is(err, lock.ErrHeld) {
								t.Fatalf("by another: %v", err)
							}
						}
						check(t, lease.Extend(within(t, patience)))
						check(t, lease.Release())
						for _, l := range []*lock.Locker{other, b} {
							lease, err := l.TryAcquire(within(t, patience), name, nil)
							check(t, err)
							check(t, lease.Release())
							last = max(last, lease.Token())
						}
					}
				}
			})
			if !good {
				return
			}
		}
	})
}

// TestContention: names that nobody has locked before, by many at once.
func TestContention(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		var inside [3]atomic.Int32
		var last [3]atomic.Int64
		var all sync.WaitGroup
		for i := range 5 {
			dsn := m.DSN(t)
			if i%2 == 1 {
				dsn += "&autocommit=0&" + map[testenv.Engine]string{testenv.MariaDB: "tx_isolation", testenv.MySQL: "transaction_isolation"}[m.Engine] + "=%27SERIALIZABLE%27"
			}
			db := open(t, dsn)
			for j := range 3 {
				l := locker(t, mysqllock.New, db, long)
				all.Go(func() {
					for k := range 3 * 4 {
						n := (k + j) % 3
						lease, err := l.Acquire(within(t, patience), fmt.Sprint("n", n), nil)
						if err != nil {
							t.Error(err)
							return
						}
						if inside[n].Add(1) != 1 {
							t.Error("two have the lock")
						}
						if before := last[n].Swap(lease.Token()); before >= lease.Token() {
							t.Errorf("token %d after %d", lease.Token(), before)
						}
						inside[n].Add(-1)
						if err := lease.Release(); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
	})
}

func TestMissingTable(t *testing.T) {
	t.Parallel()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		_, err := locker(t, mysqllock.New, e.Shared(t).DB(t), long).Acquire(within(t, patience), "a-private-name", nil)
		if err == nil || !strings.Contains(err.Error(), "`cacheaside_locks` is missing") || strings.Contains(err.Error(), "private") {
			t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	db := open(t, "root@tcp(127.0.0.1:1)/none")
	for field, o := range map[string]*mysqllock.Options{
		"Options.Table":         {Table: "a b"},
		"Options.Table \"a.b.c": {Table: "a.b.c"},
		"Options.Table \"`":     {Table: "`"},
		"Options.Poll":          {Poll: time.Minute},
		"LockerOptions.TTL":     {LockerOptions: lock.LockerOptions{TTL: 1}},
	} {
		if _, err := mysqllock.New(db, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := mysqllock.New(nil, nil); err == nil {
		t.Error("no db")
	}
	l := locker(t, mysqllock.New, db, nil) // no I/O
	if _, err := l.Acquire(context.Background(), "a", nil); err == nil {
		t.Error("a lock of no server")
	}
	if text, err := mysqllock.Schema(&mysqllock.Options{Table: "s.t"}); err != nil || !strings.Contains(text, "`s`.`t`") {
		t.Error(text, err)
	}
	if _, err := mysqllock.Schema(&mysqllock.Options{Table: "t;"}); err == nil {
		t.Error("any table")
	}
	if err := mysqllock.CreateTable(context.Background(), nil, nil); err == nil {
		t.Error("no db")
	}
}
