package testenv

import (
	"context"
	"database/sql"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// standbyName is the name of a standby, and of its slot on the primary.
const standbyName = "standby"

// StartStandby returns a standby that streams from p and accepts queries. It connects to addr,
// which is p.Addr or that of a Proxy. Its application_name and its slot on p are called "standby",
// so a server has one at most. Settings are as in StartPostgres. It is killed when the test ends.
func (p *Postgres) StartStandby(t testing.TB, addr string, settings ...string) *Postgres {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := launchPostgres(t, p.programs, func(s *server, data string) error {
		return prepareAs(context.Background(), s.user, s.dir, filepath.Join(p.programs, "pg_basebackup"),
			"--pgdata="+data, "--host="+host, "--port="+port, "--username="+p.User, "--slot="+standbyName,
			"--create-slot",
			"--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	}, append([]string{
		"primary_conninfo=host=" + host + " port=" + port + " user=" + p.User + " dbname=postgres application_name=" +
			standbyName,
		"primary_slot_name=" + standbyName,
	}, settings...)...)
	s.claim(t)
	return s
}

// Promote makes a standby the primary. It returns when the server accepts writes.
func (p *Postgres) Promote(t testing.TB) {
	t.Helper()
	if err := p.exec("SELECT pg_promote(true, " + strconv.Itoa(int(Hang.Seconds())) + ")"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the standby is promoted",
		func() bool { return p.exec("CREATE TEMPORARY TABLE promoted (id INT)") == nil })
}

// NewTimeline restarts the server as a standby, and promotes it. Its log continues on another
// timeline, and it keeps its slots.
func (p *Postgres) NewTimeline(t testing.TB) {
	t.Helper()
	p.Kill()
	if err := os.WriteFile(filepath.Join(p.dir, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p.Restart(t)
	p.Promote(t)
}

// WriterDSN returns the URL of the test's database on p, or on standby if that was promoted.
func (p *Postgres) WriterDSN(t testing.TB, standby *Postgres) string {
	t.Helper()
	return strings.Replace(p.DSN(t), p.Addr, p.Addr+","+standby.Addr, 1) + "&target_session_attrs=read-write"
}

// Ask returns the text of the only column of the only row. The query runs in the database
// "postgres", also on a standby.
func (p *Postgres) Ask(t testing.TB, query string) (text string) {
	t.Helper()
	db, err := sql.Open("pgx", p.dsn("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), query).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// Major returns the number of the server's major version.
func (p *Postgres) Major(t testing.TB) int {
	t.Helper()
	version, err := strconv.Atoi(p.Ask(t, "SHOW server_version_num"))
	if err != nil {
		t.Fatal(err)
	}
	return version / 10000
}
