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
	name  string
	table kept.Table
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
	c := &SQLCheckpoint{cmp.Or(o.Name, "canal"), kept.Table{DB: db, Name: cmp.Or(o.Table, "cacheaside_checkpoint")}}
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("canal: NewSQLCheckpoint: db is nil")
	case !checkpointName.MatchString(c.name):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Name %q: 1 to 64 small letters, digits, '_', '.' and '-'", c.name)
	case !kept.TableName.MatchString(c.table.Name):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Table %q: an identifier of at most 63 letters, digits and '_', or schema.table", c.table.Name)
	}
	return c, nil
}

// Schema returns the statement that makes the table where there is none, for your migrations.
func (c *SQLCheckpoint) Schema() string {
	text := "MEDIUMTEXT"
	if sqlx.BindType(c.table.DB.DriverName()) == sqlx.DOLLAR { // PostgreSQL, whose TEXT has no limit
		text = "TEXT"
	}
	return "CREATE TABLE IF NOT EXISTS " + c.table.Name + " (name VARCHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, place " + text + " NOT NULL, saved BIGINT NOT NULL)"
}

// CreateTable does what Schema says, for tests and first steps.
func (c *SQLCheckpoint) CreateTable(ctx context.Context) error {
	_, err := c.table.DB.ExecContext(ctx, c.Schema())
	return c.failed(err)
}

// Load returns none if there is no row.
func (c *SQLCheckpoint) Load(ctx context.Context) (event.Position, error) {
	s, _, err := c.Look(ctx)
	return s.Position, err
}

// Saved is what an SQLCheckpoint has of a Consumer.
type Saved struct {
	Position event.Position
	Token    int64     // of the lock under which it was saved; 0: there was none
	Time     time.Time // by the clock of the process that saved it
}

// Look returns what was saved last, for a caller that only looks; found is false if nothing was.
func (c *SQLCheckpoint) Look(ctx context.Context) (s Saved, found bool, err error) {
	err = c.table.Tx(ctx, func(tx *sqlx.Tx) error {
		s, err = c.row(ctx, tx)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) || err == nil && s.Position == "" && s.Time.UnixMicro() == 0 { // a first save has not ended
		return Saved{}, false, nil
	}
	return s, err == nil, c.failed(err)
}

func (c *SQLCheckpoint) row(ctx context.Context, tx *sqlx.Tx) (s Saved, err error) {
	var micros int64
	err = tx.QueryRowxContext(ctx, c.table.Text("SELECT place, token, saved FROM TABLE WHERE name = ? LIMIT 1"), c.name).Scan(&s.Position, &s.Token, &micros)
	if err != nil {
		return Saved{}, err
	}
	s.Time = time.UnixMicro(micros)
	return s, nil
}

// Save compares the token in the statement that writes.
func (c *SQLCheckpoint) Save(ctx context.Context, p event.Position, token int64) error {
	if len(p) > event.MaxPosition {
		return c.failed(fmt.Errorf("a position of %d bytes: %d at most", len(p), event.MaxPosition))
	}
	err := c.update(ctx, p, token)
	if errors.Is(err, sql.ErrNoRows) {
		_, failed := c.table.Exec(ctx, "INSERT INTO TABLE (name, token, place, saved) VALUES (?, 0, '', 0)", c.name) // unless another has just done it
		if err = c.update(ctx, p, token); errors.Is(err, sql.ErrNoRows) {
			err = cmp.Or(failed, err)
		}
	}
	return c.failed(err)
}

// update saves a position in the row that is there.
func (c *SQLCheckpoint) update(ctx context.Context, p event.Position, token int64) error {
	return c.table.Tx(ctx, func(tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, c.table.Text("UPDATE TABLE SET token = ?, place = ?, saved = ? WHERE name = ? AND token <= ?"), token, p, time.Now().UnixMicro(), c.name, token)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		is, err := c.row(ctx, tx) // the servers also count no row if the same is written again
		if err == nil && is.Token > token {
			return ErrSuperseded
		}
		return err
	})
}

func (c *SQLCheckpoint) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("canal: checkpoint %s in %s: %w", c.name, c.table.Name, err)
}
