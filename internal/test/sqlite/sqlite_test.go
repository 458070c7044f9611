package sqlite

import "testing"

func TestOpen(t *testing.T) {
	db := Open(t)
	if _, err := db.Exec("CREATE TABLE a (n INT); INSERT INTO a VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for range 8 {
		go func() { // connections of the pool that write at the same time
			_, err := db.Exec("UPDATE a SET n = n + 1")
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	var n int
	var mode string
	if err := db.QueryRow("SELECT n FROM a").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil {
		t.Fatal(err)
	}
	if n != 8 || mode != "wal" {
		t.Errorf("n = %d, journal mode %s", n, mode)
	}
}
