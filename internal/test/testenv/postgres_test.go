package testenv

import (
	"fmt"
	"os"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
)

func TestPostgresGivesEachTestADatabase(t *testing.T) {
	p := started(t, SharedPostgres)
	var first, level string
	t.Run("first", func(t *testing.T) {
		first = p.Database(t)
		db := p.DB(t)
		_, err := db.Exec("CREATE TABLE a (id INT PRIMARY KEY)")
		check(t, err)
		var n int
		check(t, p.DB(t).QueryRow("SELECT count(*) FROM a").Scan(&n))
	})
	db := p.DB(t)
	var n int
	check(t, db.QueryRow("SELECT count(*) FROM pg_database WHERE datname = $1", first).Scan(&n))
	if n != 0 {
		t.Errorf("database %s is still there", first)
	}
	check(t, db.QueryRow("SELECT current_setting('wal_level')").Scan(&level))
	if level != "logical" {
		t.Errorf("wal_level %s", level)
	}
	if again := started(t, SharedPostgres); again != p {
		t.Error("a healthy server was replaced")
	}
}

// A paused server replies on no connection, and a killed one keeps committed rows.
func TestPostgresPausesDiesAndRestarts(t *testing.T) {
	p := started(t, func(t testing.TB) *Postgres { return StartPostgres(t, "max_prepared_transactions=7") })
	db := p.DB(t)
	db.SetMaxOpenConns(1)
	var n int
	check(t, db.QueryRow("SELECT current_setting('max_prepared_transactions')").Scan(&n))
	if n != 7 {
		t.Errorf("max_prepared_transactions %d", n)
	}
	_, err := db.Exec("CREATE TABLE a (id INT PRIMARY KEY)")
	check(t, err)
	sends := func(id int) <-chan error {
		done := make(chan error, 1)
		go func() { _, err := db.Exec("INSERT INTO a VALUES ($1)", id); done <- err }()
		return done
	}
	p.Pause()
	for _, pid := range append(p.process().children(), p.Pid()) {
		// Z: the backend of a closed connection, which the paused server does not reap.
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil ||
			!strings.Contains(string(stat), ") T ") && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d runs: %s, %v", pid, stat, err)
		}
	}
	done := sends(1)
	p.Resume()
	check(t, Receive(t, "the insert", done))
	p.Pause()
	done = sends(2)
	p.Kill()
	if err := Receive(t, "the insert", done); err == nil {
		t.Error("a dead server replies")
	}
	p.Restart(t)
	check(t, <-sends(3))
	var sum int
	check(t, db.QueryRow("SELECT sum(id) FROM a").Scan(&sum))
	if sum != 4 {
		t.Errorf("the sum of the rows is %d, want 1 + 3", sum)
	}
}
