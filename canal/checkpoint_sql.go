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
	"github.com/cacheaside/cacheaside/canal/internal/storage"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// SQLCheckpointOptions are the settings of an SQLCheckpoint. A nil pointer and the zero value
// select the defaults.
type SQLCheckpointOptions struct {
	// Name identifies the checkpoint in its table. Consumers that take over from each other use the
	// same name; other Consumers use different names. A name has at most 64 lower-case letters,
	// digits, '_', '.' and '-'. Default: "canal".
	Name string

	// Table is the table that stores the checkpoints. For MySQL and PostgreSQL it can be
	// schema.table. In PostgreSQL the case of letters matters, and a name without a schema is in
	// the schema "public", for any search_path. Default: "cacheaside_checkpoint".
	Table string
}

// An SQLCheckpoint is a Checkpoint in a table of a database. If the Consumer follows that
// database, each save is a change too: one per Options.SaveEvery while rows change, and one per
// ten SaveEvery while none do. An SQLCheckpoint is safe for concurrent use by any number of
// processes.
//
// A save is a short transaction. If a process is stopped in it, without ending its connection, its
// successor consumes, but cannot save until the process continues or the server ends the session.
type SQLCheckpoint struct {
	name  string
	table storage.Table
}

var checkpointName = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// NewSQLCheckpoint returns an SQLCheckpoint that stores the position in a table of db. The caller
// closes db. NewSQLCheckpoint does no I/O: a missing table is an error of the first use. It is
// tested with MySQL, MariaDB, PostgreSQL and SQLite. The driver's name determines the placeholders
// (see sqlx.BindType); NewSQLCheckpoint returns an error if it contradicts the driver.
func NewSQLCheckpoint(db *sqlx.DB, options *SQLCheckpointOptions) (*SQLCheckpoint, error) {
	var o SQLCheckpointOptions
	if options != nil {
		o = *options
	}
	c := &SQLCheckpoint{cmp.Or(o.Name, "canal"), storage.Table{DB: db, Name: cmp.Or(o.Table, "cacheaside_checkpoint")}}
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("canal: NewSQLCheckpoint: db is nil")
	case storage.CheckDriver(db) != nil:
		return nil, fmt.Errorf("canal: NewSQLCheckpoint: %w", storage.CheckDriver(db))
	case !checkpointName.MatchString(c.name):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Name %q: 1 to 64 lower-case letters, digits, '_', '.' "+
			"and '-'", c.name)
	case !storage.TableName.MatchString(c.table.Name):
		return nil, fmt.Errorf("canal: SQLCheckpointOptions.Table %q: an identifier of at most 63 letters, digits "+
			"and '_', or schema.table", c.table.Name)
	}
	return c, nil
}

// Schema returns the statement that creates the table if it does not exist, for your migrations.
func (s *SQLCheckpoint) Schema() string {
	text := "MEDIUMTEXT"
	if sqlx.BindType(s.table.DB.DriverName()) == sqlx.DOLLAR { // PostgreSQL, whose TEXT has no limit
		text = "TEXT"
	}
	return "CREATE TABLE IF NOT EXISTS " + s.table.SQL() +
		" (name VARCHAR(64) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, place " + text +
		" NOT NULL, saved BIGINT NOT NULL)"
}

// CreateTable executes Schema. It is meant for tests and first steps.
func (s *SQLCheckpoint) CreateTable(ctx context.Context) error {
	return s.wrap(sqldb.CreateTable(ctx, s.table.DB, s.Schema()))
}

// Load returns "" if there is no row.
func (s *SQLCheckpoint) Load(ctx context.Context) (event.Position, error) {
	saved, _, err := s.Read(ctx)
	return saved.Position, err
}

// Saved is the row of a Consumer in the table of an SQLCheckpoint.
type Saved struct {
	Position event.Position
	Token    int64     // the token of the lock under which it was saved; 0: no lock
	Time     time.Time // when it was saved, by the clock of the saving process
}

// Read returns the row that was saved last, for tools that display it. found is false if there is
// none.
func (s *SQLCheckpoint) Read(ctx context.Context) (saved Saved, found bool, err error) {
	err = s.table.Tx(ctx, func(tx *sqlx.Tx) error {
		saved, err = s.row(ctx, tx)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) || err == nil && saved.Position == "" && saved.Time.UnixMicro() == 0 {
		// the first save is in progress
		return Saved{}, false, nil
	}
	return saved, err == nil, s.wrap(err)
}

func (s *SQLCheckpoint) row(ctx context.Context, tx *sqlx.Tx) (saved Saved, err error) {
	var micros int64
	err = tx.QueryRowxContext(ctx, s.table.Text("SELECT place, token, saved FROM TABLE WHERE name = ? LIMIT 1"),
		s.name).Scan(&saved.Position, &saved.Token, &micros)
	if err != nil {
		return Saved{}, err
	}
	saved.Time = time.UnixMicro(micros)
	return saved, nil
}

// Save compares the token in the statement that writes the position.
func (s *SQLCheckpoint) Save(ctx context.Context, p event.Position, token int64) error {
	if len(p) > event.MaxPosition {
		return s.wrap(fmt.Errorf("the position has %d bytes, the maximum is %d", len(p), event.MaxPosition))
	}
	err := s.update(ctx, p, token)
	if errors.Is(err, sql.ErrNoRows) {
		// fails if another process has just inserted the row
		_, insertErr := s.table.Exec(ctx, "INSERT INTO TABLE (name, token, place, saved) VALUES (?, 0, '', 0)", s.name)
		if err = s.update(ctx, p, token); errors.Is(err, sql.ErrNoRows) {
			err = cmp.Or(insertErr, err)
		}
	}
	return s.wrap(err)
}

// update saves a position in the existing row.
func (s *SQLCheckpoint) update(ctx context.Context, p event.Position, token int64) error {
	return s.table.Tx(ctx, func(tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx,
			s.table.Text("UPDATE TABLE SET token = ?, place = ?, saved = ? WHERE name = ? AND token <= ?"), token, p,
			time.Now().UnixMicro(), s.name, token)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n > 0 {
			return err
		}
		current, err := s.row(ctx, tx) // servers also count no row if it already has these values
		if err == nil && current.Token > token {
			return ErrSuperseded
		}
		return err
	})
}

func (s *SQLCheckpoint) wrap(err error) error {
	if err == nil {
		return nil
	}
	if storage.NoTable(err) {
		return wording.Errorf("canal: checkpoint %s: the table is missing: %s: %w", s.name, s.Schema(), err)
	}
	return wording.Errorf("canal: checkpoint %s in %s: %w", s.name, s.table.Name, err)
}
