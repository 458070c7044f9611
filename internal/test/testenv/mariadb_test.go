package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func init() {
	RegisterChild("run mariadb", func() { fmt.Println(runAndStop()) })
}

// runAndStop does as a program does.
func runAndStop() error {
	addr, stop, err := RunMariaDB(context.Background())
	if err != nil {
		return err
	}
	defer stop()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	var format string
	if err := db.QueryRow("SELECT @@binlog_format").Scan(&format); err != nil || format != "ROW" {
		return fmt.Errorf("binlog_format %q: %w", format, err)
	}
	stop()
	if db.Ping() == nil {
		return errors.New("a stopped server answers")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // while the tables are made
	defer cancel()
	if _, _, err := RunMariaDB(ctx); ctx.Err() == nil || err == nil {
		return fmt.Errorf("no time to start: %w", err)
	}
	os.Setenv("PATH", "")
	if _, _, err := RunMariaDB(context.Background()); err == nil {
		return errors.New("nothing is installed, and no error")
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		return fmt.Errorf("left behind: %v, %w", left, err)
	}
	return nil
}

func TestRunMariaDB(t *testing.T) {
	program(t, "mariadbd", mariaDBPackage)
	// A process of its own, which runs nothing else.
	c := SpawnChild(t, "run mariadb", "TMPDIR="+t.TempDir())
	if line, err := c.ReadLine(2 * startLimit); line != "<nil>" || err != nil {
		t.Errorf("%s, %v", line, err)
	}
	check(t, c.Wait())
}

// Where there is no MySQL, no part of its tests runs: one that tries until it succeeds would fail.
// In continuous integration it fails by itself.
func TestWithoutMySQL(t *testing.T) {
	const inside = "TESTENV_WITHOUT_MYSQL"
	if os.Getenv(inside) != "" {
		mysqld = func() (string, error) { return "", errNoMySQL }
		EachEngine(t, func(t *testing.T, e Engine) { t.Log("called for", e) })
		return
	}
	program(t, "mariadbd", mariaDBPackage)
	self, err := os.Executable()
	check(t, err)
	for ci, end := range map[string]string{"": "SKIP", "true": "FAIL"} {
		// a process of its own, whose skipped test is none here
		run := exec.Command(self, "-test.run=^TestWithoutMySQL$", "-test.v")
		run.Env = append(os.Environ(), inside+"=1", "CI="+ci)
		out, err := run.CombinedOutput()
		if n := strings.Count(string(out), "called for"); n != 1 ||
			!strings.Contains(string(out), "called for mariadb") ||
			!strings.Contains(string(out), "--- "+end+": TestWithoutMySQL/mysql") || (err != nil) != (ci == "true") {
			t.Errorf("CI=%s: %v\n%s", ci, err, out)
		}
	}
}

// Both engines have the settings that the tests rely on, and are two servers.
func TestEngines(t *testing.T) {
	seen := map[string]Engine{}
	EachEngine(t, func(t *testing.T, e Engine) {
		m := e.Shared(t)
		var version, image, metadata string
		check(t, m.DB(t).QueryRow("SELECT VERSION(), @@binlog_row_image, @@binlog_row_metadata").Scan(&version, &image,
			&metadata))
		t.Log(version)
		if strings.Contains(version, "MariaDB") != (e == MariaDB) || image != "FULL" || metadata != "FULL" {
			t.Errorf("version %s, images %s, metadata %s", version, image, metadata)
		}
		if other, twice := seen[m.Addr]; twice {
			t.Errorf("it is the server of %s", other)
		}
		seen[m.Addr] = e
	})
}
