package mysqllock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

func TestSettingsOfSessions(t *testing.T) {
	eachParallel(t, func(t *testing.T, w rowtest.World) {
		m := w.Server.(*testenv.SQLServer)
		rowtest.Sessions(t, w, m.Engine.Sessions(), func(settings string) string { return m.SessionDSN(t, settings) })
	})
}

func TestContention(t *testing.T) {
	eachParallel(t, func(t *testing.T, w rowtest.World) {
		isolation := map[testenv.Engine]string{testenv.MariaDB: "tx_isolation",
			testenv.MySQL: "transaction_isolation"}[w.Server.(*testenv.SQLServer).Engine]
		rowtest.Contention(t, w, w.DSN+"&autocommit=0&"+isolation+"=%27SERIALIZABLE%27")
	})
}

func TestMissingTable(t *testing.T) {
	t.Parallel()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		_, err := kind.Locker(t, e.Shared(t).DB(t), rowtest.Long).Acquire(within(t, patience), "a-private-name", nil)
		if err == nil || !strings.Contains(err.Error(), "`cacheaside_locks` is missing") ||
			strings.Contains(err.Error(), "private") {
			t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	db := kind.Open(t, "root@tcp(127.0.0.1:1)/none")
	for field, o := range map[string]*mysqllock.Options{
		"Options.Table":         {Table: "a b"},
		"Options.Table \"a.b.c": {Table: "a.b.c"},
		"Options.Table \"`":     {Table: "`"},
		"Options.Poll":          {Poll: time.Minute},
		"Options.TTL":           {Options: lock.Options{TTL: 1}},
	} {
		if _, err := mysqllock.New(db, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := mysqllock.New(nil, nil); err == nil {
		t.Error("New accepts a nil db")
	}
	l := kind.Locker(t, db, nil) // no I/O
	if _, err := l.Acquire(context.Background(), "a", nil); err == nil {
		t.Error("Acquire succeeds without a server")
	}
	if text, err := mysqllock.Schema(&mysqllock.Options{Table: "s.t"}); err != nil ||
		!strings.Contains(text, "`s`.`t`") {
		t.Error(text, err)
	}
	if _, err := mysqllock.Schema(&mysqllock.Options{Table: "t;"}); err == nil {
		t.Error("Schema accepts an invalid table name")
	}
	if err := mysqllock.CreateTable(context.Background(), nil, nil); err == nil {
		t.Error("CreateTable accepts a nil db")
	}
}
