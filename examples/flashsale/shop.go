package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/cacheaside/cacheaside/lock"
)

// shop is the database that all processes share: the stock, in one row or one for each segment, and
// who has bought.
//
// The stock is read, and written a moment later: as it is where there is more to decide than
// whether something is left. That is what the lock is for. (Where there is not, "UPDATE stock SET
// pieces = pieces - 1 WHERE pieces > 0" needs no lock at all.)
type shop struct {
	*sql.DB
	faults *faults
}

var schema = []string{
	"CREATE TABLE stock (segment INTEGER PRIMARY KEY, pieces INTEGER NOT NULL, fence BIGINT NOT NULL)",
	"CREATE TABLE sales (buyer INTEGER NOT NULL, segment INTEGER NOT NULL)",
	"CREATE TABLE locks (name VARCHAR(100) PRIMARY KEY)",
	"CREATE TABLE events (name VARCHAR(100) PRIMARY KEY)",
}

// openShop opens the shop in a folder, or, where place is a data source name, on a MySQL or
// MariaDB.
func openShop(ctx context.Context, place string) (*shop, error) {
	driver, source := "mysql", place
	if filepath.IsAbs(place) {
		file := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(place, "shop.db")), RawQuery: url.Values{
			"_pragma": {"busy_timeout(20000)", "journal_mode(WAL)", "synchronous(OFF)"},
			"_txlock": {"immediate"},
		}.Encode()}
		driver, source = "sqlite", file.String()
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{DB: db, faults: &faults{}}, nil
}

// fill makes the tables, with so many pieces in so many segments.
func (s *shop) fill(ctx context.Context, pieces, segments int) error {
	for _, table := range schema {
		if _, err := s.ExecContext(ctx, table); err != nil {
			return err
		}
	}
	for i := range segments {
		if _, err := s.ExecContext(ctx, "INSERT INTO stock VALUES (?, ?, 0)", i, pieces/segments); err != nil {
			return err
		}
	}
	return nil
}

var errEmpty = errors.New("this segment is sold out")

// guard has each row of the stock remember the greatest token that it was shown, and refuse a
// smaller one.
var guard = lock.Guard{Table: "stock", Key: "segment"}

// buy is one purchase, under the lock of the segment. token is the fencing token of that, 0 where a
// lock has none. The error is lock.ErrStale if somebody with a newer one was here.
//
// The token is shown when the stock is read, and again when it is written: so one who held the lock
// before, and does not know that he has lost it, changes nothing that the next one has read.
func (s *shop) buy(ctx context.Context, buyer, segment int, token int64) error {
	var pieces int
	err := s.guarded(ctx, segment, token, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT pieces FROM stock WHERE segment = ?", segment).Scan(&pieces)
	})
	if err != nil {
		return err
	}
	if pieces == 0 {
		return errEmpty
	}
	s.faults.at(ctx, hasRead)
	err = s.guarded(ctx, segment, token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE stock SET pieces = ? WHERE segment = ?", pieces-1, segment)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO sales VALUES (?, ?)", buyer, segment)
		}
		return err
	})
	if err == nil {
		s.faults.at(ctx, hasWritten)
	}
	return err
}

// guarded is a transaction of the holder of this token.
func (s *shop) guarded(ctx context.Context, segment int, token int64, do func(*sql.Tx) error) error {
	tx, err := s.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if token > 0 {
		if err := guard.Check(ctx, tx, segment, token); err != nil {
			return err
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *shop) number(ctx context.Context, query string) (n int, err error) {
	err = s.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

func (s *shop) sold(ctx context.Context) (int, error) {
	return s.number(ctx, "SELECT COUNT(*) FROM sales")
}

func (s *shop) left(ctx context.Context) (int, error) {
	return s.number(ctx, "SELECT SUM(pieces) FROM stock")
}

// noteOnce keeps that something has happened, and tells whether it is the first time in all
// processes.
func (s *shop) noteOnce(ctx context.Context, event string) bool {
	_, err := s.ExecContext(ctx, "INSERT INTO events VALUES (?)", event) // its second row is refused
	return err == nil
}
