package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// onDatabase returns a world with a database that contains an outbox.
func onDatabase(t *testing.T) (*world, *sqlx.DB, *sqloutbox.Outbox) {
	m := testenv.SharedMariaDB(t)
	w := &world{t, map[string]string{"CACHEASIDE_MYSQL_DSN": m.DSN(t)}}
	db := sqlx.NewDb(m.DB(t), "mysql")
	o, err := sqloutbox.New(db, sqloutbox.MySQL, &sqloutbox.Options{Namespace: "shop"})
	w.check(err)
	return w, db, o
}

func item(id byte, text string) consistency.Item {
	return consistency.Item{ID: strings.Repeat(fmt.Sprintf("%02x", id), 16),
		Key: cacheaside.Key{Loader: "user", Version: "1", Text: text}}
}

func TestOutbox(t *testing.T) {
	w, db, o := onDatabase(t)
	ctx := t.Context()
	w.fails(exitFailed, "missing", "outbox", "ls")
	w.fails(exitFailed, "missing", "outbox", "retry", "--yes", "--all")
	w.check(o.CreateTable(ctx))
	if s := parsed[shownOutbox](w, exitOK, "outbox", "ls"); s.Items != 0 || len(s.Listed) != 0 {
		t.Errorf("for an empty outbox it shows %+v", s)
	}
	w.says(w.ok("outbox", "ls"), "0 items", "no items")
	claimed, failed, second, all, secret := item(1, "claimed"), item(2, "failed\x1b[31m"), item(3, "second"), item(4,
		""), item(5, "CANARY-KEY")
	failed.After, failed.Attempts, failed.Reload = time.Hour, 7, true
	second.After = time.Hour
	all.Key.Text, all.Key.All, all.After = "", true, 2*time.Hour
	secret.After, secret.Again = 3*time.Hour, 5*time.Second
	w.check(o.Put(ctx, claimed))
	if got, err := o.Claim(ctx, 1, 30*time.Minute); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	w.check(o.Put(ctx, failed, second, all, secret, item(6, "due")))
	_, err := db.ExecContext(ctx,
		"INSERT INTO cacheaside_outbox (namespace, id, due, created, loader, version, text, all_keys, again, reload, "+
			"attempts, admit) VALUES ('shop', x'07', 0, 0, 'a/b\x1b', '1', 'x', 0, 0, 0, 0, 0)")
	w.check(err)

	s := parsed[shownOutbox](w, exitOK, "outbox", "ls")
	if s.Items != 7 || s.Due != 2 || s.AtLeast || s.OldestMs < 1e12 {
		t.Errorf("it shows %+v", s)
	}
	by := make(map[string]shownItem)
	for _, i := range s.Listed {
		by[i.ID[:2]] = i
		if i.Key != nil {
			t.Errorf("it shows the key of %+v", i)
		}
	}
	if i := by["01"]; i.State != "claimed" || i.Hash != keyHash(claimed.Key.Hash()) {
		t.Errorf("claimed: %+v", i)
	}
	if i := by["02"]; i.State != "waits" || i.Attempts != 7 || !i.Reload || i.DueMs < 59*60*1000 {
		t.Errorf("failed: %+v", i)
	}
	if i := by["04"]; !i.All || i.Hash != "" {
		t.Errorf("all: %+v", i)
	}
	if i := by["05"]; i.AgainMs != 5000 {
		t.Errorf("again: %+v", i)
	}
	if i := by["06"]; i.State != "due" || i.DueMs > 0 {
		t.Errorf("due: %+v", i)
	}
	if i := by["07"]; !i.Unreadable || i.Loader != "" {
		t.Errorf("unreadable: %+v", i)
	}
	people := w.ok("outbox", "ls")
	w.says(people, "7 items, 2 of them due", "7 times", "a relay has claimed it", "by a reload", "all keys",
		"unreadable", "then once more 5s later")
	if strings.Contains(people, "CANARY") {
		t.Errorf("it shows keys:\n%s", people)
	}
	people = w.ok("outbox", "ls", "--show-keys")
	w.says(people, "CANARY-KEY", `"failed\x1b[31m"`)
	if !harmless(people) {
		t.Errorf("%q", people)
	}
	w.says(w.ok("outbox", "ls", "--limit", "2"), "--limit")

	other, err := sqloutbox.New(db, sqloutbox.MySQL, &sqloutbox.Options{Namespace: "crm"})
	w.check(err)
	w.check(other.Put(ctx, item(8, "other")))
	_, err = db.ExecContext(ctx,
		"INSERT INTO cacheaside_outbox (namespace, id, due, created, loader, version, text, all_keys, again, reload, "+
			"attempts, admit) VALUES ('\x1b[31m', x'09', 9000000000000000, 1, 'user', '1', 'x', 0, 0, 0, 0, 0)")
	w.check(err)
	if s := parsed[shownOutbox](w, exitOK, "outbox", "ls"); s.Items != 9 || len(s.Namespaces) != 3 ||
		len(s.Listed) != 9 {
		t.Errorf("for all namespaces it shows %+v", s)
	}
	if s := parsed[shownOutbox](w, exitOK, "outbox", "ls", "--namespace", "crm"); s.Items != 1 ||
		len(s.Namespaces) != 1 || len(s.Listed) != 1 || s.Listed[0].Namespace != "crm" {
		t.Errorf("for one namespace it shows %+v", s)
	}
	people = w.ok("outbox", "ls")
	w.says(people, "9 items, 3 of them due", "of crm: 1 item, 1 of them due", "of shop: 7 items", "NAMESPACE")
	if !harmless(people) {
		t.Errorf("%q", people)
	}
	w.check(other.Done(ctx, item(8, "other")))
	_, err = db.ExecContext(ctx, "DELETE FROM cacheaside_outbox WHERE id = x'09000000000000000000000000000000'")
	w.check(err)

	stays := func() string {
		s := parsed[shownOutbox](w, exitOK, "outbox", "ls")
		return fmt.Sprint(s.Items, s.Due)
	}
	w.fails(exitUsage, "--yes", "outbox", "retry", "--all")
	o1 := w.with(types("n\n"), "outbox", "retry", "--all")
	w.failed(o1, exitFailed, "nothing was changed", []string{"outbox", "retry"})
	w.says(o1.err, "7 items", "2 of which are due")
	if got := stays(); got != "7 2" {
		t.Errorf("it has changed items without a confirmation: %s", got)
	}
	type result struct {
		Made int64 `json:"made_due"`
	}
	if r := parsed[result](w, exitOK, "outbox", "retry", "--yes", "--all"); r.Made != 1 {
		t.Errorf("it has made %d items due", r.Made)
	}
	o2 := w.with(types("y\n"), "outbox", "retry", "--id", second.ID+","+strings.Repeat("EE", 16))
	if o2.code != exitOK || !strings.Contains(o2.out, "1 item") {
		t.Errorf("exit code %d: %s%s", o2.code, o2.out, o2.err)
	}
	if got := stays(); got != "7 4" {
		t.Errorf("the outbox is now %s", got)
	}
	_, err = db.ExecContext(ctx, "RENAME TABLE cacheaside_outbox TO other")
	w.check(err)
	w.ok("outbox", "ls", "--table", "other")
	w.ok("outbox", "ls", "--table", testenv.SharedMariaDB(t).Database(t)+".other")
}

// TestMySQLIsDown: the error is clear and comes in time.
func TestMySQLIsDown(t *testing.T) {
	w := nowhere(t)
	for _, args := range [][]string{{"outbox", "ls"}, {"outbox", "retry", "--yes", "--all"}, {"binlog", "status"},
		{"filter", "rebuild", "--yes", "--table", "a", "--column", "b", "--capacity", "1", "--rate", "0.1", "f"}} {
		w.fails(exitFailed, "refused", append([]string{"--timeout", "500ms"}, args...)...)
	}
	m := testenv.SharedMariaDB(t)
	p := testenv.NewProxy(t, m.Addr)
	p.Hang(true)
	w.env["CACHEASIDE_MYSQL_DSN"] = strings.Replace(m.DSN(t), m.Addr, p.Addr, 1)
	began := time.Now()
	w.fails(exitFailed, "--timeout", "--timeout", "300ms", "outbox", "ls")
	if took := time.Since(began); testenv.Accepting && took > 3*time.Second {
		t.Errorf("it takes %v", took)
	}
}

// The outbox in PostgreSQL, and a filter of one of its tables.
func TestOutboxOfPostgres(t *testing.T) {
	p := testenv.SharedPostgres(t)
	w := &world{t, map[string]string{"CACHEASIDE_POSTGRES_DSN": p.DSN(t)}}
	db := sqlx.NewDb(p.DB(t), "pgx")
	o, err := sqloutbox.New(db, sqloutbox.Postgres, &sqloutbox.Options{Namespace: "shop"})
	w.check(err)
	w.fails(exitFailed, "cacheaside_outbox", "outbox", "ls")
	w.check(o.CreateTable(t.Context()))
	failed := item(2, "CANARY-KEY")
	failed.After, failed.Attempts = time.Hour, 7
	w.check(o.Put(t.Context(), item(1, "due"), failed))
	s := parsed[shownOutbox](w, exitOK, "outbox", "ls")
	if s.Items != 2 || s.Due != 1 || len(s.Listed) != 2 || s.Listed[1].Attempts != 7 ||
		s.Listed[1].Hash != keyHash(failed.Key.Hash()) {
		t.Errorf("it shows %+v", s)
	}
	w.says(w.ok("outbox", "ls", "--show-keys"), "CANARY-KEY")
	w.says(w.ok("outbox", "retry", "--yes", "--id", failed.ID), "1 item")
	if s := parsed[shownOutbox](w, exitOK, "outbox", "ls", "--table", "public.cacheaside_outbox"); s.Due != 2 {
		t.Errorf("after retry: %+v", s)
	}
	w.fails(exitUsage, "--table", "outbox", "ls", "--table", "a b")
	file := filepath.Join(t.TempDir(), "dsn")
	w.check(os.WriteFile(file, []byte(w.env["CACHEASIDE_POSTGRES_DSN"]+"\n"), 0o600))
	delete(w.env, "CACHEASIDE_POSTGRES_DSN")
	w.says(w.ok("--postgres-dsn-file", file, "outbox", "retry", "--yes", "--all"), "0 items")

	_, err = db.Exec("CREATE TABLE users (id BIGINT PRIMARY KEY); INSERT INTO users SELECT generate_series(1, 2500)")
	w.check(err)
	w.env["CACHEASIDE_REDIS"], w.env["DSN"] = testenv.SharedRedis(t).Addr, p.DSN(t)
	w.says(w.ok("filter", "rebuild", "--yes", "--dsn-env", "DSN", "--table", "users", "--column", "id", "--capacity",
		"5000", "--rate", "0.01", "--settle", "-1s", "postgres"), "built of 2500 keys")
}

// TestOutboxGroups: a group is shown as a group, by its hash unless --show-keys is given.
func TestOutboxGroups(t *testing.T) {
	row := sqloutbox.Row{Item: item(1, "category:books"), Namespace: "shop"}
	row.Key.Version, row.Key.Group = "", true
	hash := fmt.Sprintf("group#%016x", row.Key.Hash())
	for _, keys := range []bool{false, true} {
		i := (&outboxing{keys: keys}).item(row)
		want := map[bool]string{false: hash, true: "group category:books"}[keys]
		if got := i.cells()[3]; got != want || !i.Group || i.All || i.Hash != hash || (i.Key != nil) != keys {
			t.Errorf("%v: %v, %+v", keys, got, i)
		}
	}
}
