package canal

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/kept"
)

// SQLCheckpointOptions are the settings of an SQLCheckpoint. nil, and the zero value, are good
// defaults.
type SQLCheckpointOptions struct {
	// Name tells the checkpoints of a table from each other: one for each Consumer, but the same
	// for Consumers that take over from each other. Small letters, digits, '_', '.' and '-', at
	// most 64. Default: "canal".
	Name string

	// Table holds them. Of MySQL it may be given as schema.table. Default: "cacheaside_checkpoint".
	Table string
}

// SQLCheckpoint is a Checkpoint in a table of a database. If the changes of that database are
// consumed, each save is such a change, too: one in each Options.SaveEvery while rows change, and
// one in ten times SaveEvery while none do. An SQLCheckpoint is safe for concurrent use by any
// number of processes.
type SQLCheckpoint struct {
	db          *sqlx.DB
	name, table string
}

var checkpointName = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// NewSQLCheckpoint keeps the position in a table of db, which stays the caller's. NewSQLCheckpoint
// sends nothing: if the table is missing, the first use says so. It is known to work with MySQL,
// MariaDB and SQLite; the driver's name tells which placeholders to use (see sqlx.BindType).
func NewSQLCheckpoint(db *sqlx.DB, options *SQLCheckpointOptions) (*SQLCheckpoint, error) {
	var o SQLCheckpointOptions
	if options != nil {
		o = *options
	}
	c := &SQLCheckpoint{db: db, name: cmp.Or(o.Name, "canal"), table: cmp.Or(o.Table, "cacheaside_checkpoint")}
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("canal: NewSQLCheckpoint: db is nil")
	case !checkpointName.MatchString(c.name):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Name %q: 1 to 64 small letters, digits, '_', '.' and '-'", c.name)
	case !kept.Table.MatchString(c.table):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Table %q: an identifier of at most 63 letters, digits and '_', or schema.table", c.table)
	}
	return c, nil
}

// Schema is the statement that makes the table where there is none, for your migrations.
//
// Tables of earlier versions have a column place of type TEXT, of which MySQL and MariaDB keep
// 65,535 bytes. A longer position is then an error of Save, and the one before it is kept. MODIFY
// the column to MEDIUMTEXT where GTIDs have thousands of gaps.
func (c *SQLCheckpoint) Schema() string {
	text := "MEDIUMTEXT"
	if sqlx.BindType(c.db.DriverName()) == sqlx.DOLLAR { // PostgreSQL, whose TEXT has no limit
		text = "TEXT"
	}
	return "CREATE TABLE IF NOT EXISTS " + c.table + " (name VARCHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, place " + text + " NOT NULL, saved BIGINT NOT NULL)"
}

// CreateTable does what Schema says, for tests and first steps.
func (c *SQLCheckpoint) CreateTable(ctx context.Context) error {
	_, err := c.db.ExecContext(ctx, c.Schema())
	return c.failed(err)
}

// Load returns none if there is no row.
func (c *SQLCheckpoint) Load(ctx context.Context) (event.Position, error) {
	p, _, _, err := c.row(ctx, c.own(ctx))
	return p, c.failed(err)
}

// Saved is what an SQLCheckpoint has of a Consumer.
type Saved struct {
	Position event.Position
	Token    int64     // of the lock under which it was saved; 0: there was none
	Time     time.Time // by the clock of the process that saved it
}

// Look returns what was saved last, for a caller that only looks; found is false if nothing was.
func (c *SQLCheckpoint) Look(ctx context.Context) (s Saved, found bool, err error) {
	var micros int64
	err = kept.InTx(ctx, c.db, func(tx *sqlx.Tx) error {
		return tx.QueryRowxContext(ctx, c.text("SELECT place, token, saved FROM TABLE WHERE name = ? LIMIT 1"), c.name).Scan(&s.Position, &s.Token, &micros)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Saved{}, false, nil
	}
	s.Time = time.UnixMicro(micros)
	return s, err == nil, c.failed(err)
}

// transaction calls f in a transaction: one of its own, or one that is under way.
type transaction func(f func(tx *sqlx.Tx) error) error

// own returns the transactions of statements that are committed each by itself.
func (c *SQLCheckpoint) own(ctx context.Context) transaction {
	return func(f func(tx *sqlx.Tx) error) error { return kept.InTx(ctx, c.db, f) }
}

func (c *SQLCheckpoint) row(ctx context.Context, in transaction) (p event.Position, token int64, found bool, err error) {
	err = in(func(tx *sqlx.Tx) error {
		return tx.QueryRowxContext(ctx, c.text("SELECT place, token FROM TABLE WHERE name = ? LIMIT 1"), c.name).Scan(&p, &token)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, false, nil
	}
	return p, token, err == nil, err
}

// shortText is what a column of type TEXT keeps in MySQL and MariaDB, in bytes.
const shortText = 1<<16 - 1

// Save compares the token in the statement that writes.
func (c *SQLCheckpoint) Save(ctx context.Context, p event.Position, token int64) error {
	switch {
	case len(p) > event.MaxPosition:
		return c.failed(fmt.Errorf("a position of %d bytes: %d at most", len(p), event.MaxPosition))
	case len(p) > shortText:
		return c.failed(c.saveLong(ctx, p, token))
	}
	return c.failed(c.saveBy(ctx, c.own(ctx), p, token))
}

// saveLong saves a position that a column of type TEXT cannot keep. Without a strict sql_mode the
// server cuts it, and only warns. The rest of it would be another position. So it is read back
// before it is committed.
func (c *SQLCheckpoint) saveLong(ctx context.Context, p event.Position, token int64) error {
	err := kept.InTx(ctx, c.db, func(tx *sqlx.Tx) error {
		in := func(f func(tx *sqlx.Tx) error) error { return f(tx) }
		if err := c.saveBy(ctx, in, p, token); err != nil {
			return err
		}
		had, _, _, err := c.row(ctx, in)
		if err == nil && had != p {
			err = fmt.Errorf("%d bytes of it were kept", len(had))
		}
		return err
	})
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrSuperseded) {
		return err
	}
	return fmt.Errorf("a position of %d bytes, which a column of type TEXT cannot keep: ALTER TABLE %s MODIFY place MEDIUMTEXT NOT NULL: %w", len(p), c.table, err)
}

func (c *SQLCheckpoint) saveBy(ctx context.Context, in transaction, p event.Position, token int64) error {
	var last error
	for range 3 { // another may put the row there, or change it, between
		saved := time.Now().UnixMicro()
		if n, err := c.exec(ctx, in, "UPDATE TABLE SET token = ?, place = ?, saved = ? WHERE name = ? AND token <= ?", token, p, saved, c.name, c.atMost(token)); err != nil || n > 0 {
			return err
		}
		had, before, found, err := c.row(ctx, in)
		switch {
		case err != nil:
			return err
		case found && before > token:
			return ErrSuperseded
		case found && had == p && before == token: // MySQL does not count a row that it has left as it was
			return nil
		case found:
			continue
		}
		if _, last = c.exec(ctx, in, "INSERT INTO TABLE (name, token, place, saved) VALUES (?, ?, ?, ?)", c.name, token, p, saved); last == nil {
			return nil
		}
	}
	return cmp.Or(last, errors.New("other Consumers are saving at the same time"))
}

func (c *SQLCheckpoint) atMost(token int64) int64 {
	return token
}

func (c *SQLCheckpoint) exec(ctx context.Context, in transaction, statement string, args ...any) (rows int64, err error) {
	err = in(func(tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, c.text(statement), args...)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		return err
	})
	return rows, err
}

func (c *SQLCheckpoint) text(statement string) string {
	return c.db.Rebind(kept.InTable(statement, c.table))
}

func (c *SQLCheckpoint) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("canal: checkpoint %s in %s: %w", c.name, c.table, err)
}
