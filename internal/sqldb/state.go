package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// SQLState returns the code of an error of PostgreSQL, and "" for any other error. The drivers pgx
// and pq have errors with this method.
func SQLState(err error) string {
	type serverError interface {
		error
		SQLState() string
	}
	if e, ok := errors.AsType[serverError](err); ok {
		return e.SQLState()
	}
	return ""
}

// creatingElsewhere are the codes of PostgreSQL's errors of a CREATE TABLE IF NOT EXISTS while
// another session creates the same table: unique_violation, duplicate_table and duplicate_object,
// the last for the type of the table's rows.
var creatingElsewhere = []string{"23505", "42P07", "42710"}

const (
	maxCreations  = 10
	creationDelay = 5 * time.Millisecond
)

// CreateTable executes statement, a CREATE TABLE IF NOT EXISTS. It repeats it if another session
// creates the table at the same time.
func CreateTable(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, statement string) (err error) {
	for i := range maxCreations {
		if i > 0 && retry.Sleep(ctx, creationDelay) != nil {
			break
		}
		if _, err = db.ExecContext(ctx, statement); !slices.Contains(creatingElsewhere, SQLState(err)) {
			break
		}
	}
	return err
}
