package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// nowhere returns a world without servers.
func nowhere(t *testing.T) *world {
	return &world{t, map[string]string{"CACHEASIDE_REDIS": "127.0.0.1:1",
		"CACHEASIDE_MYSQL_DSN": "user:word@tcp(127.0.0.1:1)/db"}}
}

// TestUsage: the message of each mistake names the flag or argument. The exit code is 2.
func TestUsage(t *testing.T) {
	w := nowhere(t)
	for _, c := range []struct{ args, says string }{
		{"", "a command is missing"},
		{"gett user 1", `did you mean "get"`},
		{"lock lst", `did you mean "lock ls"`},
		{"outbux ls", `did you mean "outbox"`},
		{"frobnicate", `no command "frobnicate"`},
		{"filter", "info, check, rebuild"},
		{"filter --json", "info, check, rebuild"},
		{"help frobnicate", "no command"},
		{"--nonsense get", "nonsense"},
		{"get", "LOADER and KEY"},
		{"get user", "LOADER and KEY"},
		{"get user 1 2", "LOADER and KEY"},
		{"get us{er 1", "LOADER"},
		{"get --version v/1 user 1", "--version"},
		{"get --max-value 0 user 1", "--max-value"},
		{"get --max-value 99999999999 user 1", "--max-value"},
		{"get --max-value many user 1", "max-value"},
		{"get user --json", "flags stand before"},
		{"--prefix a:b get user 1", "--prefix"},
		{"--timeout 1ms get user 1", "--timeout"},
		{"--timeout 2h get user 1", "--timeout"},
		{"--timeout soon get user 1", "timeout"},
		{"--db -1 get user 1", "--db"},
		{"--db 1 --redis a:1,b:2 get user 1", "--db"},
		{"--redis localhost get user 1", "--redis"},
		{"--redis redis://a:1 --db 1 get user 1", "--db"},
		{"--redis redis://a:1 --tls get user 1", "--tls"},
		{"lock break --", "NAME"},
		{"--redis a:1,,b:2 get user 1", "--redis"},
		{"--redis http://a:1 get user 1", "--redis"},
		{"--redis redis://a:1 --sentinel-master m get user 1", "--sentinel-master"},
		{"invalidate", "LOADER is missing"},
		{"invalidate user", "name keys"},
		{"invalidate --all user 1", "not both"},
		{"invalidate --all --group user", "not both"},
		{"invalidate --group user", "name keys"},
		{"invalidate --group user -", "--yes"},
		{"invalidate us/er 1", "LOADER"},
		{"invalidate user - 1", `"-"`},
		{"invalidate user -", "--yes"},
		{"invalidate user 1 --yes", "flags stand before"},
		{"invalidate --replica-lag 1h user 1", "--replica-lag"},
		{"loader", "ls"},
		{"loader ls x", "no arguments"},
		{"tail x", "no arguments"},
		{"tail --count -1", "--count"},
		{"tail --for -1s", "--for"},
		{"filter info", "NAME"},
		{"filter info a/b", "NAME"},
		{"filter check users", "KEY"},
		{"filter rebuild users", "--table"},
		{"filter rebuild --table a --column b --type blob users", "--type"},
		{"filter rebuild --table a --column b --rate 2 users", "--rate"},
		{"filter rebuild --table a --column b --rows-per-second -1 users", "--rows-per-second"},
		{"filter rebuild --dsn-env NOT_SET --table a --column b users", "NOT_SET"},
		{"outbox ls x", "no arguments"},
		{"outbox ls --limit 0", "--limit"},
		{"outbox ls --limit 1001", "--limit"},
		{"outbox ls --table a;b", "--table"},
		{"outbox ls --namespace a;b", "--namespace"},
		{"outbox retry", "--id or --all"},
		{"outbox retry --all --id 00", "--id or --all"},
		{"outbox retry --id 00", "--id"},
		{"binlog status x", "no arguments"},
		{"binlog status --checkpoint-table a;b", "Table"},
		{"binlog status --name A/B", "Name"},
		{"binlog status --parking-table a;b", "Table"},
		{"lock ls x", "no arguments"},
		{"lock ls --limit 0", "--limit"},
		{"lock ls --lock-prefix *", "--lock-prefix"},
		{"lock break", "NAME"},
		{"lock break a b", "NAME"},
		{"schema", "postgres, mysql, sqlite"},
		{"schema mysql x", "no arguments"},
		{"schema mysql --parts outbox,views", "--parts"},
		{"schema sqlite --parts locks", "--parts"},
		{"schema sqlite --check", "check"},
		{"schema mysql --parts ,", "--parts"},
		{"schema mysql --tables a;b", "--tables"},
		{"schema mysql --full-tables a.b.c", "--full-tables"},
		{"schema postgres --outbox-table a'b", "--outbox-table"},
		{"schema postgres --schema a.b", "--schema"},
		{"schema postgres --app-role a-b", "--app-role"},
		{"schema postgres --slot Shop", "--slot"},
		{"schema postgres --publication $$", "--publication"},
		{"schema postgres --check", "another kind"},
	} {
		w.fails(exitUsage, c.says, strings.Fields(c.args)...)
	}
	w.env["CACHEASIDE_MYSQL_DSN"] = ""
	w.fails(exitUsage, "CACHEASIDE_MYSQL_DSN", "outbox", "ls")
	w.env["CACHEASIDE_MYSQL_DSN"] = "not a DSN with word in it"
	w.fails(exitUsage, "CACHEASIDE_MYSQL_DSN", "outbox", "ls")
	w.fails(exitFailed, "--mysql-dsn-file", "--mysql-dsn-file", "/nonexistent", "outbox", "ls")
	w.fails(exitFailed, "--redis-password-file", "--redis-password-file", "/nonexistent", "get", "user", "1")
	empty := filepath.Join(t.TempDir(), "empty")
	w.check(os.WriteFile(empty, []byte("\n"), 0o600))
	w.fails(exitFailed, "empty", "--redis-password-file", empty, "get", "user", "1")
	w.fails(exitFailed, "no certificate", "--tls-ca", empty, "get", "user", "1")
}

// TestHelp: each command has a help with an example. The example is a valid call, and the page for
// operators contains it.
func TestHelp(t *testing.T) {
	w := nowhere(t)
	all := w.ok("help")
	if w.ok("-h") != all || w.ok("--help") != all {
		t.Error("-h and help differ")
	}
	page, err := os.ReadFile("../../docs/guides/tool.md")
	w.check(err)
	for _, c := range commands() {
		w.says(all, c.name+" ", c.short)
		help := w.ok(append([]string{"help"}, strings.Fields(c.name)...)...)
		w.says(help, "cacheaside "+c.name, "example:", c.example)
		if h := w.ok(append(strings.Fields(c.name), "-h")...); h != help {
			t.Errorf("%s -h is not its help", c.name)
		}
		if !strings.HasPrefix(c.example, c.name) {
			t.Errorf("the example of %s is %q", c.name, c.example)
		}
		wide := w
		if c.name == "slot status" || c.name == "schema postgres" {
			wide = &world{t, map[string]string{"CACHEASIDE_POSTGRES_DSN": "postgres://user:word@127.0.0.1:1/db"}}
		}
		if o := wide.call(append([]string{"--timeout", "200ms"},
			strings.Fields(c.example)...)...); o.code == exitUsage && !strings.Contains(o.err, "--yes") {
			t.Errorf("the example %q is refused: %s", c.example, o.err)
		}
		w.says(string(page), "cacheaside "+c.name)
	}
	w.says(w.ok("help", "filter"), "filter info", "filter check", "filter rebuild")
}

// TestNoPasswordInArguments: a password in an argument is refused, and no message repeats it.
func TestNoPasswordInArguments(t *testing.T) {
	w := nowhere(t)
	for _, url := range []string{"redis://:word@h:1", "redis://user:word@h:1/0", "rediss://user:word@h",
		"user:word@h:1", "redis://:wo%rd%word@h:1", "redis://h:1?password=word", "h:1,user:word@h:2"} {
		o := w.fails(exitUsage, "password in an argument", "--redis", url, "get", "user", "1")
		o2 := w.call("--redis", url, "get", "-h")
		o3 := w.call(url, "get")
		o4 := w.call("--redis-password="+url, "get")
		o5 := w.call("--timeout", url, "get")
		for _, o := range []outcome{o, o2, o3, o4, o5} {
			if strings.Contains(o.out+o.err, "word@") || strings.Contains(o.out+o.err, "=word") {
				t.Errorf("%s is repeated: %s%s", url, o.out, o.err)
			}
		}
	}
	if o := w.call("--redis", "redis://user@127.0.0.1:1", "get", "user", "1"); o.code != exitFailed {
		t.Errorf("a user alone: exit code %d: %s", o.code, o.err)
	}
}

// TestRedisIsDown: whether Redis refuses connections or hangs, the error is clear and comes in
// time.
func TestRedisIsDown(t *testing.T) {
	server := testenv.StartRedis(t)
	silent := &world{t, map[string]string{"CACHEASIDE_REDIS": server.Addr}}
	server.Pause()
	defer server.Resume()
	for _, args := range [][]string{{"get", "user", "1"}, {"invalidate", "--yes", "user", "1"},
		{"invalidate", "--yes", "--all", "user"}, {"tail"}, {"filter", "info", "f"}, {"filter", "check", "f", "1"}, {"lock", "ls"}, {"lock", "break", "--yes", "x"}} {
		for _, w := range []*world{nowhere(t), silent} {
			began := time.Now()
			o := w.fails(exitFailed, "", append([]string{"--timeout", "300ms"}, args...)...)
			if took := time.Since(began); testenv.Accepting && took > 3*time.Second {
				t.Errorf("%q takes %v", args, took)
			}
			if o.err == "" || o.out != "" && args[0] != "lock" {
				t.Errorf("%q: %q %q", args, o.out, o.err)
			}
		}
	}
	w := nowhere(t)
	w.env["CACHEASIDE_REDIS"] = "127.0.0.1:1,127.0.0.1:2"
	w.fails(exitFailed, "refused", "--timeout", "300ms", "get", "user", "1")
	w.fails(exitFailed, "refused", "--timeout", "300ms", "tail")
	w.fails(exitFailed, "refused", "--timeout", "300ms", "lock", "ls")
}

// TestPasswords: a password works in each documented form. A wrong one is an error.
func TestPasswords(t *testing.T) {
	server := testenv.StartRedis(t)
	client := server.Client(t)
	w := &world{t, map[string]string{}}
	w.check(client.ConfigSet(t.Context(), "requirepass", "open sesame").Err())
	run := func(env map[string]string, args ...string) outcome {
		w.env = env
		o := w.call(append(args, "get", "user", "1")...)
		if strings.Contains(o.out+o.err, "sesame") {
			t.Errorf("%q shows the password: %s%s", args, o.out, o.err)
		}
		return o
	}
	file := filepath.Join(t.TempDir(), "password")
	w.check(os.WriteFile(file, []byte("open sesame\n"), 0o600))
	for name, o := range map[string]outcome{
		"a variable":      run(map[string]string{"CACHEASIDE_REDIS": server.Addr, "CACHEASIDE_REDIS_PASSWORD": "open sesame"}),
		"a file":          run(nil, "--redis", server.Addr, "--redis-password-file", file),
		"the URL":         run(map[string]string{"CACHEASIDE_REDIS": "redis://:open%20sesame@" + server.Addr}),
		"a URL and a var": run(map[string]string{"CACHEASIDE_REDIS_PASSWORD": "open sesame"}, "--redis", "redis://default@"+server.Addr),
	} {
		if o.code != exitAbsent {
			t.Errorf("with %s: exit code %d: %s", name, o.code, o.err)
		}
	}
	for name, o := range map[string]outcome{
		"none":           run(map[string]string{"CACHEASIDE_REDIS": server.Addr}),
		"a wrong one":    run(map[string]string{"CACHEASIDE_REDIS": "redis://:close%20sesame@" + server.Addr}),
		"another's name": run(map[string]string{"CACHEASIDE_REDIS": server.Addr, "CACHEASIDE_REDIS_PASSWORD": "open sesame"}, "--redis-user", "nobody"),
	} {
		if o.code != exitFailed || !strings.Contains(o.err, "CACHEASIDE_REDIS_PASSWORD") {
			t.Errorf("with %s: exit code %d: %s", name, o.code, o.err)
		}
	}
}

// TestWaysToRedis: TLS, sentinels, another database.
func TestWaysToRedis(t *testing.T) {
	secure := testenv.StartRedisTLS(t, "~cacheaside*", "+@all")
	w := &world{t, map[string]string{"CACHEASIDE_REDIS_PASSWORD": secure.Password}}
	w.fails(exitAbsent, "", "--redis", "rediss://"+secure.Username+"@"+secure.Addr, "--tls-ca", secure.CAFile, "get",
		"user", "1")
	w.fails(exitAbsent, "", "--redis", secure.Addr, "--redis-user", secure.Username, "--tls-ca", secure.CAFile, "get",
		"user", "1")
	w.fails(exitFailed, "certificate", "--redis", secure.Addr, "--redis-user", secure.Username, "--tls", "get",
		"user", "1")
	s := testenv.SharedSentinel(t)
	w.env = map[string]string{"CACHEASIDE_REDIS": strings.Join(s.Addrs, ",")}
	w.ok("--sentinel-master", s.MasterName, "invalidate", "--yes", "user", "1")
	w.fails(exitFailed, "", "--timeout", "500ms", "--sentinel-master", "nobody", "get", "user", "1")
	cluster := testenv.SharedCluster(t)
	w.env = map[string]string{"CACHEASIDE_REDIS": cluster.Addrs[0]}
	// The node reports that it belongs to a cluster.
	for _, key := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		w.fails(exitAbsent, "", "get", "user", key)
	}
}

// TestChangesNeedConfirmation: each command that changes something asks first, and changes nothing
// without a yes.
func TestChangesNeedConfirmation(t *testing.T) {
	w, rdb := onServer(t)
	ctx := t.Context()
	put := func() { w.check(rdb.Set(ctx, "cacheaside:user:1:{1}", "x", 0).Err()) }
	there := func() bool { return rdb.Exists(ctx, "cacheaside:user:1:{1}").Val() == 1 }
	put()
	for answer, yes := range map[string]bool{"y\n": true, "Y\n": true, "yes\n": true, "n\n": false, "\n": false,
		"": false, "y": false, "yess\n": false, strings.Repeat("y", 1000) + "\n": false} {
		put()
		o := w.with(types(answer), "invalidate", "user", "1")
		if there() == yes || (o.code == exitOK) != yes || !strings.Contains(o.err, "Continue?") ||
			!strings.Contains(o.err, "1 key of the loader user") {
			t.Errorf("answered %.10q: exit code %d: %s%s", answer, o.code, o.out, o.err)
		}
		if !yes && (o.code != exitFailed || !strings.Contains(o.err, "nothing was changed")) {
			t.Errorf("answered %.10q: exit code %d: %s", answer, o.code, o.err)
		}
	}
	put()
	o := w.with(strings.NewReader("y\n"), "invalidate", "user", "1") // not a terminal
	w.failed(o, exitUsage, "--yes", []string{"invalidate"})
	if !there() {
		t.Error("it changes Redis without a terminal")
	}
	file, err := os.Open(os.DevNull)
	w.check(err)
	defer file.Close()
	if o := w.with(file, "invalidate", "user", "1"); o.code == exitOK || !there() {
		t.Errorf("with %s as input: exit code %d", os.DevNull, o.code)
	}
	before := dump(w, rdb)
	for _, args := range [][]string{{"invalidate", "user", "1"}, {"invalidate", "--all", "user"},
		{"invalidate", "user", "-"}} {
		for _, stdin := range []*typedTerminal{types("n\n"), types("")} {
			if o := w.with(stdin, args...); o.code == exitOK {
				t.Errorf("%q runs without a confirmation", args)
			}
		}
		w.fails(exitUsage, "--yes", args...)
	}
	if after := dump(w, rdb); after != before {
		t.Errorf("Redis has changed:\n%s\n%s", before, after)
	}
	interrupted, cancel := context.WithCancel(ctx)
	cancel()
	nobody := &silent{make(chan struct{}), make(chan struct{})}
	getenv := func(n string) string { return w.env[n] }
	code := run(interrupted, []string{"invalidate", "user", "1"}, getenv, &typedTerminal{nobody}, &buffer{}, &buffer{})
	if code != exitFailed || !there() {
		t.Errorf("interrupted at the question: exit code %d", code)
	}
	close(nobody.end)
	testenv.Receive(t, "somebody has been asked", nobody.ended)
}

// silent is a terminal without input until end is closed.
type silent struct{ end, ended chan struct{} }

func (s *silent) Read([]byte) (int, error) {
	<-s.end
	close(s.ended)
	return 0, io.EOF
}

// TestPermissions: the permissions of a Redis user in docs/guides/tool.md are sufficient.
func TestPermissions(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/tool.md")
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"~cacheaside*", "~lock:*", "&cacheaside*", "&lock:*"}
	for word := range strings.FieldsSeq(string(page)) {
		if word = strings.Trim(word, "`,.;:()"); strings.HasPrefix(word, "+") {
			allowed = append(allowed, word)
		}
	}
	server := testenv.StartRedisTLS(t, allowed...)
	w := &world{t, map[string]string{"CACHEASIDE_REDIS": "rediss://" + server.Username + "@" + server.Addr,
		"CACHEASIDE_REDIS_PASSWORD": server.Password}}
	m := testenv.SharedMariaDB(t)
	w.env["CACHEASIDE_MYSQL_DSN"] = m.DSN(t)
	w.rows(m, 10)
	admin := server.AdminClient(t)
	acquire(t, locker(t, admin), "a")
	call := func(code int, args ...string) {
		t.Helper()
		w.fails(code, "", append([]string{"--tls-ca", server.CAFile}, args...)...)
	}
	call(exitAbsent, "get", "--show-value", "user", "1")
	call(exitAbsent, "loader", "ls")
	call(exitOK, "invalidate", "--yes", "--replica-lag", "1s", "user", "1")
	if o := w.call("--tls-ca", server.CAFile, "invalidate", "--yes", "user", "1"); !strings.Contains(o.err,
		"Redis knows: no loader at all\n") {
		t.Errorf("it cannot list the loaders: %s", o.err)
	}
	call(exitOK, "invalidate", "--yes", "--all", "user")
	call(exitOK, "tail", "--for", "50ms")
	call(exitOK, "lock", "ls")
	call(exitOK, "lock", "break", "--yes", "a")
	for range 2 { // the second run removes what the first has created
		call(exitOK, "filter", "rebuild", "--yes", "--table", "t", "--column", "id", "--capacity", "10", "--rate",
			"0.01", "--settle", "-1s", "f")
	}
	call(exitOK, "filter", "info", "f")
	call(exitOK, "filter", "check", "f", "1")
}
