package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// logged is a world with a database that contains a checkpoint, and a change for the log.
type logged struct {
	*world
	db         *sqlx.DB
	checkpoint *canal.SQLCheckpoint
	executed   string // an SQL expression for the GTIDs that the server has logged
}

func onLog(t *testing.T) *logged {
	return onLogOf(t, testenv.SharedMariaDB(t), "@@global.gtid_binlog_pos")
}

func onLogOf(t *testing.T, m *testenv.SQLServer, executed string) *logged {
	l := &logged{world: &world{t, map[string]string{"CACHEASIDE_MYSQL_DSN": m.DSN(t)}},
		db: sqlx.NewDb(m.DB(t), "mysql"), executed: executed}
	l.exec("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT)")
	var err error
	l.checkpoint, err = canal.NewSQLCheckpoint(l.db, nil)
	l.check(err)
	return l
}

func (l *logged) exec(statement string) {
	l.Helper()
	_, err := l.db.ExecContext(l.Context(), statement)
	l.check(err)
}

func (l *logged) now() string {
	l.Helper()
	var pos string
	l.check(l.db.GetContext(l.Context(), &pos, "SELECT "+l.executed))
	return pos
}

// unlogged saves a position without writing to the log.
func (l *logged) unlogged(position string) {
	l.Helper()
	conn, err := l.db.Connx(l.Context())
	l.check(err)
	defer conn.Close()
	for _, statement := range []string{"SET SESSION sql_log_bin = 0",
		"REPLACE INTO cacheaside_checkpoint (name, token, place, saved) VALUES ('canal', 3, '" + position +
			"', UNIX_TIMESTAMP() * 1000000)", "SET SESSION sql_log_bin = 1"} {
		_, err := conn.ExecContext(l.Context(), statement)
		l.check(err)
	}
}

func TestBinlogStatus(t *testing.T) {
	l := onLog(t)
	l.fails(exitFailed, "cacheaside_checkpoint", "binlog", "status")
	l.check(l.checkpoint.CreateTable(t.Context()))
	if s := parsed[shownBinlog](l.world, exitAbsent, "binlog", "status"); s.Saved != nil || s.Progress.State != "none" {
		t.Errorf("without a saved position it shows %+v", s)
	}
	l.unlogged("mariadb:" + l.now())
	s := parsed[shownBinlog](l.world, exitOK, "binlog", "status")
	if s.Progress.State != "equal" || s.Saved.Token != 3 || s.Saved.Time == nil || s.Server.Executed != l.now() ||
		s.Server.File == "" || s.Server.Oldest == "" || s.Server.Logs < 1 || s.Server.Bytes < 100 ||
		len(s.Server.Settings) != 4 || s.Parked != nil {
		t.Errorf("it shows %+v %+v", s, s.Server)
	}
	l.exec("INSERT INTO t VALUES ()")
	l.exec("INSERT INTO t VALUES ()")
	s = parsed[shownBinlog](l.world, exitOK, "binlog", "status")
	if s.Progress.State != "behind" || s.Progress.Behind != 2 ||
		!strings.Contains(s.Progress.Words, "still in the logs") || !strings.Contains(s.Progress.Missing, l.now()) {
		t.Errorf("it shows %+v", s.Progress)
	}
	p, err := parking.NewTable(l.db, nil)
	l.check(err)
	l.check(p.CreateTable(t.Context()))
	l.check(p.Park(t.Context(), parking.Parked{Reason: "CANARY-VALUE"}))
	s = parsed[shownBinlog](l.world, exitOK, "binlog", "status", "--parking-table", "cacheaside_parked")
	if s.Parked == nil || *s.Parked != 1 {
		t.Errorf("parked: %v", s.Parked)
	}
	people := l.ok("binlog", "status", "--parking-table", "cacheaside_parked")
	l.says(people, "behind", "about 4 transactions", "parked", "binlog_row_metadata", "as needed", "token 3")
	if strings.Contains(people, "CANARY") {
		t.Error("it shows parked changes")
	}
	l.fails(exitFailed, "nothing_there", "binlog", "status", "--parking-table", "nothing_there")
	l.fails(exitAbsent, "", "binlog", "status", "--name", "another")
	l.env["CHECKPOINT"], l.env["CACHEASIDE_MYSQL_DSN"] = l.env["CACHEASIDE_MYSQL_DSN"], testenv.SharedMariaDB(t).DSN(t)
	l.ok("binlog", "status", "--checkpoint-dsn-env", "CHECKPOINT")

	file := filepath.Join(t.TempDir(), "dsn")
	l.check(os.WriteFile(file, []byte(l.env["CHECKPOINT"]+"\n"), 0o600))
	delete(l.env, "CACHEASIDE_MYSQL_DSN")
	l.ok("--mysql-dsn-file", file, "binlog", "status")
}

// TestBinlogPositions: positions of other servers, from the future, and invalid ones.
func TestBinlogPositions(t *testing.T) {
	l := onLog(t)
	l.check(l.checkpoint.CreateTable(t.Context()))
	for _, c := range []struct{ position, state, says string }{
		{"mariadb:0-1-99999999", "ahead", "another server"},
		{"mariadb:7-1-1", "ahead", "7-1-1"},
		{"mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "unreadable", "mariadb server"},
		{"mariadb:0-1", "unreadable", "the saved position is not one"},
		{"mariadb:0-1-1,0-1-2", "unreadable", "the saved position is not one"},
		{"\x1b[31m", "unreadable", "the saved position is not one"},
		{"", "unreadable", "the saved position is not one"},
	} {
		l.unlogged(c.position)
		s := parsed[shownBinlog](l.world, exitFailed, "binlog", "status")
		if s.Progress.State != c.state || !strings.Contains(s.Progress.Words, c.says) {
			t.Errorf("%q: %+v", c.position, s.Progress)
		}
		if o := l.fails(exitFailed, "cannot continue", "binlog", "status"); !harmless(o.out + o.err) {
			t.Errorf("%q", o.out+o.err)
		}
	}
}

// TestBinlogPurged: the position of the Consumer is no longer in the logs.
func TestBinlogPurged(t *testing.T) {
	l := onLog(t)
	l.check(l.checkpoint.CreateTable(t.Context()))
	before := l.now()
	l.exec("INSERT INTO t VALUES ()")
	done := l.now()
	l.exec("FLUSH BINARY LOGS")
	l.exec("INSERT INTO t VALUES ()")
	l.purge()
	l.unlogged("mariadb:" + before)
	s := parsed[shownBinlog](l.world, exitFailed, "binlog", "status")
	if s.Progress.State != "lost" || s.Progress.Behind != 2 || !strings.Contains(s.Progress.Words, done) {
		t.Errorf("it shows %+v", s.Progress)
	}
	l.unlogged("mariadb:" + done) // the oldest change that it needs is the oldest that is left
	if s := parsed[shownBinlog](l.world, exitOK, "binlog", "status"); s.Progress.State != "behind" ||
		s.Progress.Behind != 1 {
		t.Errorf("it shows %+v", s.Progress)
	}
}

// purge removes all logs except the last, as soon as the server no longer needs them.
func (l *logged) purge() {
	l.Helper()
	testenv.Eventually(l, "the old logs gone", func() bool {
		s := parsed[shownBinlog](l.world, exitAbsent, "binlog", "status").Server
		if s.Oldest != s.File {
			l.exec("PURGE BINARY LOGS TO '" + s.File + "'")
		}
		return s.Oldest == s.File
	})
}

// TestBinlogSettings: for a wrong setting the output contains the required value.
func TestBinlogSettings(t *testing.T) {
	l := onLog(t)
	l.check(l.checkpoint.CreateTable(t.Context()))
	for _, c := range []struct{ name, wrong, right string }{{"binlog_format", "MIXED", "ROW"},
		{"binlog_row_metadata", "MINIMAL", "FULL"}, {"binlog_row_image", "MINIMAL", "FULL"}} {
		l.unlogged("mariadb:" + l.now())
		l.exec("SET GLOBAL " + c.name + " = " + c.wrong)
		o := l.fails(exitFailed, c.name+" is "+c.wrong, "binlog", "status")
		l.exec("SET GLOBAL " + c.name + " = " + c.right)
		l.says(o.out, "WRONG", "equal")
		l.unlogged("mariadb:" + l.now())
		l.ok("binlog", "status")
	}
	l.exec("CREATE USER IF NOT EXISTS onlooker IDENTIFIED BY 'CANARY-PASSWORD'")
	l.exec("GRANT SELECT ON *.* TO onlooker")
	config, err := mysql.ParseDSN(l.env["CACHEASIDE_MYSQL_DSN"])
	l.check(err)
	config.User, config.Passwd = "onlooker", "CANARY-PASSWORD"
	l.env["CACHEASIDE_MYSQL_DSN"] = config.FormatDSN()
	l.unlogged("mariadb:" + l.now())
	s := parsed[shownBinlog](l.world, exitOK, "binlog", "status")
	if s.Server.Denied == "" || s.Server.Oldest != "" {
		t.Errorf("it shows a user without the right to see the logs %+v", s.Server)
	}
	config.Passwd = "CANARY-PASSWORD-2"
	l.env["CACHEASIDE_MYSQL_DSN"] = config.FormatDSN()
	if o := l.fails(exitFailed, "Access denied", "binlog", "status"); strings.Contains(o.out+o.err, "CANARY") {
		t.Errorf("it shows the password: %s%s", o.out, o.err)
	}
}

// TestBinlogOnMySQL: each state of progress of a Consumer, on a real MySQL.
func TestBinlogOnMySQL(t *testing.T) {
	l := onLogOf(t, testenv.SharedMySQL(t), "REPLACE(@@global.gtid_executed, '\n', '')")
	l.check(l.checkpoint.CreateTable(t.Context()))
	expect := func(position, state string, behind uint64) shownBinlog {
		t.Helper()
		l.unlogged(position)
		code := exitFailed
		if state == "equal" || state == "behind" {
			code = exitOK
		}
		s := parsed[shownBinlog](l.world, code, "binlog", "status")
		if s.Progress.State != state || s.Progress.Behind != behind {
			t.Errorf("%s: %+v", position, s.Progress)
		}
		return s
	}
	before := l.now()
	s := expect("mysql:"+before, "equal", 0)
	if s.Server.Executed != before || s.Server.File == "" || s.Server.Oldest == "" || s.Server.Logs < 1 ||
		s.Server.Bytes < 100 || len(s.Server.Settings) != 5 {
		t.Errorf("it shows %+v", s.Server)
	}
	l.exec("INSERT INTO t VALUES ()")
	done := l.now()
	l.exec("FLUSH BINARY LOGS")
	l.exec("INSERT INTO t VALUES ()")
	s = expect("mysql:"+before, "behind", 2)
	if !strings.Contains(s.Progress.Words, "still in the logs") {
		t.Errorf("it shows %+v", s.Progress)
	}
	expect("mysql:"+done, "behind", 1)
	expect("mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562@"+done, "behind", 1)
	expect("mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "ahead", 0)
	expect("mysql:"+l.now()+",3e11fa47-71ca-11e1-9e33-c80aa9429562:backup:7", "ahead", 0)
	expect("mysql:nonsense", "unreadable", 0)
	expect("mariadb:0-1-1", "unreadable", 0)
	l.exec("PURGE BINARY LOGS TO '" + s.Server.File + "'")
	expect("mysql:"+before, "lost", 2)
	expect("mysql:"+done, "behind", 1)
}

// TestBinlogOfMySQL: replies that no server here gives, according to MySQL's manual: of version
// 8.4, without SHOW MASTER STATUS, and GTID sets of several servers with tags.
func TestBinlogOfMySQL(t *testing.T) {
	const uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	answers := map[string][]map[string]string{
		"SELECT VERSION()":        {{"version": "8.4.3"}},
		"SHOW GLOBAL":             {{"variable_name": "log_bin", "value": "ON"}, {"variable_name": "binlog_format", "value": "ROW"}, {"variable_name": "binlog_row_image", "value": "FULL"}, {"variable_name": "binlog_row_metadata", "value": "FULL"}, {"variable_name": "gtid_mode", "value": "ON"}},
		"SELECT @@global.gtid_ex": {{"executed": uuid + ":1-10"}},
		"SHOW BINARY LOGS":        {{"log_name": "binlog.000003", "file_size": "157"}},
		"SHOW BINARY LOG STATUS":  {{"file": "binlog.000003", "position": "157"}},
	}
	set := map[string]string{}
	ask := func(_ context.Context, query string, _ ...any) ([]map[string]string, error) {
		if query == "SHOW MASTER STATUS" {
			return nil, &mysql.MySQLError{Number: 1064}
		}
		if strings.HasPrefix(query, "SELECT GTID_SUBTRACT") {
			return []map[string]string{set}, nil
		}
		for begins, rows := range answers {
			if strings.HasPrefix(query, begins) {
				return rows, nil
			}
		}
		return nil, errors.New("unexpected query " + query)
	}
	s, err := serverNow(t.Context(), ask)
	if err != nil || s.mariadb || s.File != "binlog.000003" || len(s.Settings) != 5 || s.Oldest == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, c := range []struct {
		saved, missing, extra, purged string
		state                         string
		behind                        uint64
	}{
		{"mysql:" + uuid + ":1-10", "", "", "", "equal", 0},
		{"mysql:" + uuid + ":1-7", uuid + ":8-10", "", "", "behind", 3},
		{"mysql:", uuid + ":1-10:12,\n" + uuid + ":tag_1:1-2:5", "", "", "behind", 14},
		{"mysql:" + uuid + ":1-7", uuid + ":8-10", "", uuid + ":8", "lost", 3},
		{"mysql:" + uuid + ":1-11", "", uuid + ":11", "", "ahead", 0},
		{"mysql:nonsense", "", "", "", "unreadable", 0},
		{"mysql:" + uuid, "", "", "", "unreadable", 0},
		{"mysql:" + uuid + ":5-1", "", "", "", "unreadable", 0},
		{"mariadb:0-1-1", "", "", "", "unreadable", 0},
	} {
		set = map[string]string{"missing": c.missing, "extra": c.extra, "purged": c.purged}
		p, err := s.progress(t.Context(), ask, c.saved)
		if err != nil || p.State != c.state || p.Behind != c.behind {
			t.Errorf("%+v: %+v, %v", c, p, err)
		}
	}
}
