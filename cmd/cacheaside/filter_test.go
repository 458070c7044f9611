package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// rows creates a table t with the numbers from 1 to n.
func (w *world) rows(m *testenv.SQLServer, n int) {
	w.Helper()
	db := m.DB(w.T)
	for _, statement := range []string{"CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(40) NOT NULL UNIQUE)",
		fmt.Sprintf("INSERT INTO t SELECT seq, CONCAT('name', seq) FROM seq_1_to_%d", n)} {
		_, err := db.ExecContext(w.Context(), statement)
		w.check(err)
	}
}

func TestFilter(t *testing.T) {
	w, rdb := onServer(t)
	m := testenv.SharedMariaDB(t)
	w.env["CACHEASIDE_MYSQL_DSN"] = m.DSN(t)
	w.env["OTHER"] = m.DSN(t)
	w.rows(m, 2500)

	if s := parsed[shownFilter](w, exitAbsent, "filter", "info", "users"); s.Built || s.Rebuilding || s.Unreadable {
		t.Errorf("without a filter it shows %+v", s)
	}
	if a := parsed[[]checked](w, exitOK, "filter", "check", "users", "1"); a[0].Answer != "maybe: it cannot say" {
		t.Errorf("without a filter it replies %+v", a)
	}
	rebuild := []string{"filter", "rebuild", "--table", "t", "--column", "id", "--settle", "-1s"}
	w.fails(exitUsage, "--capacity", append(rebuild, "--yes", "users")...)
	before := dump(w, rdb)
	sized := append(rebuild, "--capacity", "1000", "--rate", "0.001")
	w.fails(exitUsage, "--yes", append(sized, "users")...)
	o := w.with(types("n\n"), append(sized, "users")...)
	w.failed(o, exitFailed, "nothing was changed", sized)
	w.says(o.err, "1000 keys", "t.id", "0.001")
	w.fails(exitFailed, "nothing", append(rebuild, "--yes", "--capacity", "1000", "--rate", "0.001", "--column",
		"nothing", "users")...)
	w.fails(exitFailed, "identifier", append(sized, "--yes", "--column", "id; DROP", "users")...)
	w.fails(exitFailed, "not an integer", append(sized, "--yes", "--column", "name", "users")...)
	_, err := m.DB(t).ExecContext(t.Context(), "CREATE TABLE nothing (id INT PRIMARY KEY)")
	w.check(err)
	o = w.with(types("n\n"), append(sized, "--table", "nothing", "users")...)
	w.failed(o, exitFailed, "EMPTY", sized)
	if dump(w, rdb) != before {
		t.Error("Redis has changed")
	}
	o = w.with(types("yes\n"), append(sized, "users")...)
	if o.code != exitOK || !strings.Contains(o.out, "2500 keys") || !strings.Contains(o.err, "2500 keys") {
		t.Fatalf("exit code %d: %s%s", o.code, o.out, o.err)
	}
	s := parsed[shownFilter](w, exitOK, "filter", "info", "users")
	if !s.Built || s.Rebuilding || s.Capacity != 1000 || s.Rate != 0.001 || s.Keys < 2200 || s.Keys > 2800 ||
		s.Hashes < 5 || s.Segments != 1 || s.LostSegments != 0 || s.Fill < 0.5 || len(s.Generation) != 16 ||
		s.Old != 0 {
		t.Errorf("it shows %+v", s)
	}
	w.says(w.ok("filter", "info", "users"), "all there", "1000 keys", "none in progress", s.Generation)
	a := parsed[[]checked](w, exitAbsent, "filter", "check", "users", "1", "2500", "nobody", "x\x1b[31m")
	if a[0].Answer != "maybe" || a[1].Answer != "maybe" || a[3].Key != "x\x1b[31m" {
		t.Errorf("it replies %+v", a)
	}
	type result struct {
		Keys, Capacity uint64
		Seconds, Rate  float64
		Resumed        bool
	}
	// Without a size, a rebuild uses the current size or more.
	if r := parsed[result](w, exitOK, append(rebuild, "--yes", "--dsn-env", "OTHER", "users")...); r.Keys != 2500 ||
		r.Capacity < 2500 || r.Rate != 0.001 {
		t.Errorf("it says %+v", r)
	}
	if r := parsed[result](w, exitOK, "filter", "rebuild", "--table", "t", "--column", "name", "--type", "string",
		"--settle", "-1s", "--capacity", "5000", "--yes", "users"); r.Keys != 2500 || r.Capacity != 5000 {
		t.Errorf("it says %+v", r)
	}
	none := []string{"filter", "rebuild", "--settle", "-1s", "--column", "id", "--table", "nothing", "--yes"}
	w.fails(exitFailed, "--allow-fewer", append(none, "users")...)
	w.ok("filter", "check", "users", "name17")
	if o := w.call("filter", "check", "users", "17"); o.code != exitAbsent {
		t.Errorf("the filter still contains the old keys: %s", o.out)
	}
	w.ok(append(none, "--allow-fewer", "users")...)
}

// TestFilterDamaged: lost segments and keys of other types are reported.
func TestFilterDamaged(t *testing.T) {
	w, rdb := onServer(t)
	ctx := t.Context()
	f, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, nil)
	w.check(err)
	defer f.Close()
	_, err = f.Rebuild(ctx, bloom.Keys("1", "2"), &bloom.RebuildOptions{Settle: -1})
	w.check(err)
	s := parsed[shownFilter](w, exitOK, "filter", "info", "users")
	if s.Segments < 10 || s.LostSegments != 0 {
		t.Fatalf("%+v", s)
	}
	names, err := rdb.Keys(ctx, "cacheaside::bloom:{users/*}").Result()
	w.check(err)
	w.check(rdb.Del(ctx, names[0], names[1]).Err())
	w.check(rdb.Set(ctx, names[2], "something else", 0).Err())
	if s := parsed[shownFilter](w, exitOK, "filter", "info", "users"); s.LostSegments != 3 {
		t.Errorf("it shows %+v", s)
	}
	w.says(w.ok("filter", "info", "users"), "3 LOST")

	started := make(chan struct{})
	under, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Rebuild(under, func(context.Context, string) iter.Seq2[string, error] {
			close(started)
			<-under.Done()
			return func(func(string, error) bool) {}
		}, &bloom.RebuildOptions{Settle: -1})
	}()
	<-started
	if s := parsed[shownFilter](w, exitOK, "filter", "info", "users"); !s.Rebuilding || s.Next == "" ||
		s.NextBegun == nil {
		t.Errorf("during a rebuild it shows %+v", s)
	}
	cancel()
	<-done

	w.check(rdb.Set(ctx, "cacheaside::bloom:{users}", "{not a descriptor\x1b[31m", 0).Err())
	if s := parsed[shownFilter](w, exitAbsent, "filter", "info", "users"); s.Built || !s.Unreadable {
		t.Errorf("for a key of another type it shows %+v", s)
	}
	w.check(rdb.Set(ctx, "cacheaside::bloom:{users}", `{"format":99}`, 0).Err())
	w.fails(exitFailed, "newer format", "filter", "info", "users")
	w.check(rdb.Del(ctx, "cacheaside::bloom:{users}").Err())
	w.check(rdb.HSet(ctx, "cacheaside::bloom:{users}", "a", "b").Err())
	w.fails(exitFailed, "WRONGTYPE", "filter", "info", "users")
	w.fails(exitFailed, "WRONGTYPE", "filter", "check", "users", "1")
}
