package main

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// canaries returns the secrets that text contains.
func canaries(text string) (seen []string) {
	for _, c := range []string{"CANARY-VALUE", "CANARY-REDIS", "CANARY-MYSQL", "CANARY-NAME", "CANARY-KEY", "Q0FOQVJZ",
		"43414e4152"} {
		if strings.Contains(text, c) {
			seen = append(seen, c)
		}
	}
	return seen
}

// TestSecretsAreNotShown: no command prints a value, a key, the name of a key or a password,
// whether it succeeds or fails.
func TestSecretsAreNotShown(t *testing.T) {
	server := testenv.StartRedis(t)
	m := testenv.SharedMariaDB(t)
	ctx := t.Context()
	rdb := server.Client(t)
	_, users := loading(t, rdb, nil, nil,
		func(context.Context, string) (person, error) { return person{"CANARY-VALUE"}, nil })
	if _, err := users.Get(ctx, "1"); err != nil {
		t.Fatal(err)
	}
	acquire(t, locker(t, rdb), "CANARY-NAME")
	w := &world{t, map[string]string{"CACHEASIDE_REDIS": server.Addr, "CACHEASIDE_REDIS_PASSWORD": "CANARY-REDIS"}}
	w.check(rdb.Set(ctx, "cacheaside:user:1:{foreign}", "CANARY-VALUE", 0).Err())
	w.check(rdb.Set(ctx, "lock:{broken}", "CANARY-VALUE", 0).Err())
	w.check(rdb.Set(ctx, "cacheaside::bloom:{broken}", "CANARY-VALUE", 0).Err())

	db := sqlx.NewDb(m.DB(t), "mysql")
	o, err := sqloutbox.New(db, sqloutbox.MySQL, &sqloutbox.Options{Namespace: "shop"})
	w.check(err)
	w.check(o.CreateTable(ctx))
	w.check(o.Put(ctx, consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "CANARY-KEY"}, Attempts: 1}))
	checkpoint, err := canal.NewSQLCheckpoint(db, nil)
	w.check(err)
	w.check(checkpoint.CreateTable(ctx))
	p, err := parking.NewTable(db, nil)
	w.check(err)
	w.check(p.CreateTable(ctx))
	w.check(p.Park(ctx, parking.Parked{Reason: "CANARY-VALUE", Message: []byte("CANARY-VALUE")}))
	for _, statement := range []string{"CREATE TABLE secret (id VARCHAR(40) PRIMARY KEY)",
		"INSERT INTO secret VALUES ('CANARY-KEY'), ('CANARY-KEY-2')", "CREATE USER canary IDENTIFIED BY 'CANARY-MYSQL'",
		"GRANT ALL ON *.* TO canary"} {
		_, err := db.ExecContext(ctx, statement)
		w.check(err)
	}
	t.Cleanup(func() { db.Exec("DROP USER canary") })
	config, err := mysql.ParseDSN(m.DSN(t))
	w.check(err)
	config.User, config.Passwd = "canary", "CANARY-MYSQL"
	w.env["CACHEASIDE_MYSQL_DSN"] = config.FormatDSN()
	w.check(rdb.ConfigSet(ctx, "requirepass", "CANARY-REDIS").Err())

	calls := [][]string{
		{"help"}, {"get", "user", "1"}, {"get", "user", "foreign"}, {"get", "user"}, {"tail", "--for", "100ms"}, {"lock", "ls"}, {"lock", "ls", "--all"}, {"lock", "break", "--yes", "broken"},
		{"filter", "info", "broken"}, {"filter", "check", "broken", "1"}, {"filter", "rebuild", "--yes", "--table", "secret", "--column", "id", "--type", "string", "--capacity", "10", "--rate", "0.1", "--settle", "-1s", "f"},
		{"filter", "rebuild", "--yes", "--table", "secret", "--column", "id", "--capacity", "10", "--rate", "0.1", "--settle", "-1s", "g"}, {"filter", "rebuild", "--yes", "--table", "secret", "--column", "nothing", "--capacity", "10", "--rate", "0.1", "g"},
		{"outbox", "ls"}, {"outbox", "ls", "--table", "missing"}, {"outbox", "retry", "--all"}, {"outbox", "retry", "--yes", "--all"}, {"binlog", "status", "--parking-table", "cacheaside_parked"}, {"binlog", "status", "--checkpoint-table", "missing"},
		{"invalidate", "user", "2"}, {"invalidate", "--yes", "user", "2"}, {"nonsense"},
	}
	environments := map[string]map[string]string{
		"as it is":      {},
		"wrong":         {"CACHEASIDE_REDIS_PASSWORD": "CANARY-REDIS-2", "CACHEASIDE_MYSQL_DSN": strings.Replace(w.env["CACHEASIDE_MYSQL_DSN"], "CANARY-MYSQL", "CANARY-MYSQL-2", 1)},
		"malformed":     {"CACHEASIDE_REDIS": "redis://:CANARY-REDIS@" + server.Addr + "/x", "CACHEASIDE_MYSQL_DSN": "canary:CANARY-MYSQL@nowhere"},
		"malformed too": {"CACHEASIDE_REDIS": "redis://:CANARY%REDIS-CANARY-REDIS@h", "CACHEASIDE_MYSQL_DSN": "canary:pw@tcp(h:1)/db?parseTime=CANARY-MYSQL"},
		"unreachable":   {"CACHEASIDE_REDIS": "redis://:CANARY-REDIS@127.0.0.1:1", "CACHEASIDE_MYSQL_DSN": "canary:CANARY-MYSQL@tcp(127.0.0.1:1)/db"},
	}
	for name, change := range environments {
		for _, args := range calls {
			for _, form := range [][]string{nil, {"--json"}} {
				with := &world{t, maps.Clone(w.env)}
				maps.Copy(with.env, change)
				got := with.call(append(append([]string{"--timeout", "1s"}, form...), args...)...)
				if seen := canaries(got.out + got.err); seen != nil {
					t.Errorf("%s: %q shows %q:\n%s%s", name, args, seen, got.out, got.err)
				}
				if name == "as it is" && got.code == exitFailed && got.err == "" {
					t.Errorf("%q fails without a message", args)
				}
			}
		}
	}
	w.says(w.ok("get", "--show-value", "user", "1"), "CANARY-VALUE") // with --show-value
	w.says(w.ok("lock", "ls", "--show-names"), "CANARY-NAME")
}

// TestOutputHasNoControlCharacters: keys, names, values, loaders, positions and messages of servers
// are printed without control characters.
func TestOutputHasNoControlCharacters(t *testing.T) {
	w, rdb := onServer(t)
	ctx := t.Context()
	const evil = "a\x1b[2J\x1b]0;owned\x07\u009b31m\u202e\r\n\x00\x7fb"
	_, users := loading(t, rdb, nil, nil, func(context.Context, string) (map[string]string, error) {
		return map[string]string{evil: evil}, nil
	})
	if _, err := users.Get(ctx, evil); err != nil {
		t.Fatal(err)
	}
	acquire(t, locker(t, rdb), evil)
	for _, args := range [][]string{
		{"get", "--show-value", "user", evil}, {"get", evil, "x"}, {"get", "user", evil, "x"}, {"lock", "ls", "--show-names"}, {"filter", "check", "f", evil}, {"filter", "info", evil}, {evil}, {"lock", evil}, {"--" + evil, "get"},
		{"--prefix", evil, "get", "user", "1"}, {"--timeout", evil, "get"}, {"outbox", "ls", "--table", evil}, {"filter", "rebuild", "--dsn-env", evil, "--table", evil, "--column", evil, "f"}, {"--mysql-dsn-file", evil, "outbox", "ls"},
		{"--redis-password-file", evil, "get", "user", "1"}, {"invalidate", "user", evil}, {"lock", "break", evil}, {"help", evil},
	} {
		for _, form := range [][]string{nil, {"--json"}} {
			o := w.call(append(append([]string{}, form...), args...)...)
			if !harmless(o.out) || !harmless(o.err) {
				t.Errorf("%q prints\n%q\n%q", args, o.out, o.err)
			}
		}
	}
	// The JSON value is complete.
	s := parsed[shown](w, exitOK, "get", "--show-value", "user", evil)
	if !bytes.Contains(s.Value.JSON, []byte(`\u009b31m\u202e`)) {
		t.Errorf("the value is %s", s.Value.JSON)
	}
	w.check(rdb.HSet(ctx, invalidation.Numbers("cacheaside", 0), "user", evil).Err())
	if o := w.call("get", "user", evil); !harmless(o.out + o.err) {
		t.Errorf("%q", o.out+o.err)
	}
}
