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

// shop is the database that all processes share. It stores the stock, in one row for each
// segment, and the purchases.
//
// A purchase reads the stock and writes it a moment later, as a program does whose decision
// depends on more than the stock. That needs a lock. Otherwise "UPDATE stock SET pieces = pieces
// - 1 WHERE pieces > 0" would be enough.
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

// openShop opens the shop in a directory. If place is a data source name, it uses MySQL or
// MariaDB.
func openShop(ctx context.Context, place string) (*shop, error) {
	driver, source := "mysql", place
	if filepath.IsAbs(place) {
		file := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(place, "shop.db")),
			RawQuery: url.Values{
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

// fill creates the tables, with the given numbers of items and segments.
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

// guard makes each row of the stock store the greatest token that was checked, and reject smaller
// ones.
var guard = lock.Guard{Table: "stock", Key: "segment"}

// buy makes one purchase under the lock of the segment. token is the lock's fencing token, or 0
// if the lock has none. The error is lock.ErrStale if a holder with a newer token has used the
// row.
//
// buy checks the token when it reads the stock and again when it writes it. So a former holder that
// has not noticed the loss of the lock cannot change what the next holder has read.
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

// guarded runs do in a transaction that checks the token.
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

// noteOnce records an event, and reports whether it is the first record in all processes.
func (s *shop) noteOnce(ctx context.Context, event string) bool {
	_, err := s.ExecContext(ctx, "INSERT INTO events VALUES (?)", event) // a second row violates the primary key
	return err == nil
}
