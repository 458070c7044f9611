package lock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/cacheaside/cacheaside/internal/sqlname"
)

// Guard protects rows of a table of MySQL, MariaDB or SQLite from writes of former holders of a
// lock: each row remembers the greatest Lease.Token that it has been shown, and refuses a smaller
// one. A Guard protects rows also where the lock fails: from a holder that was suspended and does
// not know yet that it has lost the lock, and after a loss of the locks themselves. A Guard is safe
// for concurrent use, and has no state.
//
// A row belongs to one lock, as tokens of different locks, or of different services, say nothing of
// each other: to move locks to another service, set the column to 0. Tokens are kept in a column of
// the table; or of a table beside it that has a row for each lock, for data that is spread over
// tables or is yet to be inserted:
//
//	ALTER TABLE accounts ADD COLUMN fence BIGINT NOT NULL DEFAULT 0
type Guard struct {
	// Table holds the rows. It may be given as schema.table.
	Table string

	// Key is the column by which a row is found; its values are unique. Default: "id".
	Key string

	// Fence is the column of the tokens, a BIGINT. NULL counts as 0, which is older than any token.
	// Default: "fence".
	Fence string
}

// Check shows the row with this key the token. If the row has been shown a greater one, the error
// is ErrStale: roll back, somebody else has the lock. If there is no such row, the error is
// sql.ErrNoRows (with errors.Is). Any other error is the database's, or of a Guard that is not
// valid; roll the transaction back then, too.
//
// Call Check first in the transaction that writes, before it reads: the row is locked from then on
// until the end of the transaction, so that writes that pass are committed before a newer holder's
// Check returns. If one transaction, or other code, reads what another transaction writes, call
// Check in both: as long as the newer holder has not shown its token, the older one may still
// change what was read. The token may be shown any number of times. Without one (0, see
// Options.NoToken) nothing passes.
//
// Begin the transaction with Lease.Context: it is then rolled back as soon as the lock is known to
// be lost.
func (g Guard) Check(ctx context.Context, tx *sql.Tx, key any, token int64) error {
	g.Key, g.Fence = cmp.Or(g.Key, "id"), cmp.Or(g.Fence, "fence")
	if err := g.check(tx); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := checkToken(token); err != nil {
		return err
	}
	if err := g.show(ctx, tx, key, token); err != nil {
		return fmt.Errorf("lock: the Guard: %w", err)
	}
	return nil
}

func (g Guard) check(tx *sql.Tx) error {
	if tx == nil {
		return errors.New("the transaction is nil")
	}
	if !sqlname.IsTable(g.Table) {
		return badIdentifier("Guard.Table", g.Table)
	}
	if !sqlname.IsIdentifier(g.Key) {
		return badIdentifier("Guard.Key", g.Key)
	}
	if !sqlname.IsIdentifier(g.Fence) || strings.EqualFold(g.Fence, g.Key) {
		return badIdentifier("Guard.Fence", g.Fence)
	}
	return nil
}

func badIdentifier(field, s string) error {
	return fmt.Errorf("%s %q: an identifier of 1 to 64 letters, digits and '_'; the fence's column is not the key's", field, s)
}

// checkToken refuses what is no token: 0 would pass wherever none has been seen yet.
func checkToken(token int64) error {
	if token < 1 {
		return errors.New("lock: there is no token (Options.NoToken?), so nothing can be guarded by it")
	}
	return nil
}

func (g Guard) show(ctx context.Context, tx *sql.Tx, key any, token int64) error {
	not := " AND COALESCE(`" + g.Fence + "`, 0) <= ?"
	args := []any{token, key, token}
	done, err := tx.ExecContext(ctx, "UPDATE "+g.table()+" SET `"+g.Fence+"` = ? WHERE `"+g.Key+"` = ?"+not, args...)
	if err != nil {
		return err
	}
	n, err := done.RowsAffected()
	switch {
	case err != nil:
		return err
	case n > 1:
		return errors.New("Guard.Key matches several rows")
	case n == 1:
		return nil
	}
	return g.look(ctx, tx, key, token)
}

// look finds out why no row was changed. MySQL counts only rows that are different now, unless its
// client asks for something else, so that it may be that the token was there already. That must not
// be read from a snapshot from before a newer one came: in MySQL a comment with a "!" is none, and
// SQLite, which has no FOR UPDATE, has the one writer's lock since the UPDATE.
func (g Guard) look(ctx context.Context, tx *sql.Tx, key any, token int64) error {
	locking := " /*! FOR UPDATE */"
	var seen int64
	err := tx.QueryRowContext(ctx, "SELECT COALESCE(`"+g.Fence+"`, 0) FROM "+g.table()+" WHERE `"+g.Key+"` = ? LIMIT 1"+locking, key).Scan(&seen)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("no row with this key: %w", err)
	case err != nil:
		return err
	case seen > token:
		return ErrStale
	case seen < token:
		return errors.New("Guard.Fence has not taken the token: it must be a BIGINT")
	}
	return nil
}

func (g Guard) table() string { return sqlname.Quote(g.Table) }
