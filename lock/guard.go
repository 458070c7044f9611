package lock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Guard protects the rows of a table of MySQL, MariaDB, PostgreSQL or SQLite from writes by
// former holders of a lock. Each row stores the greatest Lease.Token that was checked against it,
// and Check rejects a smaller one. So rows stay protected when the lock itself fails: when a
// holder was suspended and does not know yet that it has lost the lock, and when the service has
// lost its locks. A Guard has no state and is safe for concurrent use.
//
// A row belongs to one lock, because tokens of different locks or services are not comparable. To
// move locks to another service, set the column to 0.
//
// The tokens are in a column of the table itself, or of a separate table with one row for each
// lock. Use a separate table for data that spans several tables or is not inserted yet.
//
//	ALTER TABLE accounts ADD COLUMN fence BIGINT NOT NULL DEFAULT 0
type Guard struct {
	// Table is the name of the table, optionally schema.table. In PostgreSQL the case of letters
	// matters in this and the other names, and a name without a schema is the table that your own
	// statements in the transaction find by its search_path.
	Table string

	// Key is the column that identifies a row; its values are unique. Default: "id".
	Key string

	// Fence is the column that stores the tokens, a BIGINT. NULL counts as 0, which is older than
	// any token. Default: "fence".
	Fence string
}

// Check stores token in the row with this key, and returns ErrStale if the row already has a
// greater one. After ErrStale, roll back: a newer holder has the lock. If there is no such row,
// the error is sql.ErrNoRows (with errors.Is). Any other error comes from the database or from an
// invalid Guard; roll back then, too.
//
// Call Check first in the transaction that writes, before it reads. It locks the row until the
// transaction ends, so the Check of a newer holder returns only after the older holder's writes
// are committed. If a transaction, or other code, reads what another transaction writes, call
// Check in both: until the newer holder has called Check, the older holder may still change what
// was read. A token may be checked any number of times. Check rejects a token of 0 (see
// AcquireOptions.NoToken).
//
// Begin the transaction with Lease.Context, so that it is rolled back as soon as the lock is
// known to be lost.
func (g Guard) Check(ctx context.Context, tx *sql.Tx, key any, token int64) error {
	g.Key, g.Fence = cmp.Or(g.Key, "id"), cmp.Or(g.Fence, "fence")
	if err := g.check(tx); err != nil {
		return wording.Errorf("lock: %w", err)
	}
	if err := checkToken(token); err != nil {
		return err
	}
	if err := g.record(ctx, tx, key, token); err != nil {
		return wording.Errorf("lock: Guard: %w", err)
	}
	return nil
}

func (g Guard) check(tx *sql.Tx) error {
	if tx == nil {
		return errors.New("the transaction is nil")
	}
	if !sqldb.IsTable(g.Table) {
		return badIdentifier("Guard.Table", g.Table)
	}
	if !sqldb.IsIdentifier(g.Key) {
		return badIdentifier("Guard.Key", g.Key)
	}
	if !sqldb.IsIdentifier(g.Fence) || strings.EqualFold(g.Fence, g.Key) {
		return badIdentifier("Guard.Fence", g.Fence)
	}
	return nil
}

func badIdentifier(field, s string) error {
	return fmt.Errorf("%s %q: must be an identifier of 1 to 64 letters, digits and '_', and Guard.Fence must differ "+
		"from Guard.Key", field, s)
}

// checkToken rejects values that are not tokens. A 0 would pass in every row without a token.
func checkToken(token int64) error {
	if token < 1 {
		return errors.New("lock: the token is 0 or negative; the lock was perhaps acquired with AcquireOptions.NoToken")
	}
	return nil
}

// record stores token in the row, unless the row has a greater one. If the UPDATE changes no row,
// record locks the row and looks at it. In PostgreSQL the row may have been deleted and inserted
// while the UPDATE waited for it: then the UPDATE is repeated.
func (g Guard) record(ctx context.Context, tx *sql.Tx, key any, token int64) error {
	if changed, err := g.update(ctx, tx, key, token); changed || err != nil {
		return err
	}
	seen, err := g.lockRow(ctx, tx, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("no row with this key: %w", err)
	case err != nil:
		return err
	case seen > token:
		return ErrStale
	case seen == token:
		return nil
	}
	changed, err := g.update(ctx, tx, key, token)
	if !changed && err == nil {
		err = errors.New("the column Guard.Fence did not store the token: it must be a BIGINT")
	}
	return err
}

// update reports whether it has changed the row. By default MySQL counts only rows whose values
// have changed, so the row may have had this token already.
func (g Guard) update(ctx context.Context, tx *sql.Tx, key any, token int64) (changed bool, err error) {
	statement := "UPDATE " + either(
		g.table()+" SET `"+g.Fence+"` = ? WHERE `"+g.Key+"` = ? AND COALESCE(`"+g.Fence+"`, 0) <= ?",
		sqldb.QuoteStandard(g.Table)+` SET "`+g.Fence+`" = $1 WHERE "`+g.Key+
			`" = $2 AND COALESCE("`+g.Fence+`", 0) <= $3`)
	args := []any{token, key, token}
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if n > 1 {
		err = errors.New("Guard.Key matches several rows")
	}
	return n == 1, err
}

// lockRow locks the row and returns its token. The token must not be read from an old snapshot,
// which may lack a newer token. MySQL executes FOR UPDATE in a comment that begins with "!". SQLite
// has no FOR UPDATE and ignores the comment. There the transaction has the only write lock since
// the UPDATE.
func (g Guard) lockRow(ctx context.Context, tx *sql.Tx, key any) (token int64, err error) {
	statement := "SELECT " + either(
		"COALESCE(`"+g.Fence+"`, 0) FROM "+g.table()+" WHERE `"+g.Key+"` = ? LIMIT 1 /*! FOR UPDATE */",
		`COALESCE("`+g.Fence+`", 0) FROM `+sqldb.QuoteStandard(g.Table)+` WHERE "`+g.Key+`" = $1 LIMIT 1 FOR UPDATE`)
	err = tx.QueryRowContext(ctx, statement, key).Scan(&token)
	return token, err
}

func (g Guard) table() string { return sqldb.Quote(g.Table) }

// either returns a statement that PostgreSQL reads as the second text, and other databases as the
// first. It is needed because a transaction does not show which database it belongs to. In
// PostgreSQL comments nest, so everything before the second text is a comment. In other databases
// the comment ends at the first */, and the second text is a comment to the end of the line.
func either(others, postgres string) string {
	return "/* /* */ " + others + " -- */ " + postgres
}
