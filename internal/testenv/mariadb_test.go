package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
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
