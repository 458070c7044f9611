package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/lock"
)

// Reports counts the users once a day.
type Reports struct {
	db     *sqlx.DB
	locker *lock.Locker
}

// daily makes the report of each day, until ctx ends.
func (r *Reports) daily(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := r.Today(ctx); err != nil && !errors.Is(err, lock.ErrHeld) && ctx.Err() == nil {
			slog.Warn("the report of today failed, and will be tried again", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
	}
	return nil
}

// snippet: report
// Today returns the report of today, and makes it if it does not exist. The lock makes one process
// at a time work on it; otherwise Today returns lock.ErrHeld. That the work is already done is
// known from its result, a row whose primary key is the day.
func (r *Reports) Today(ctx context.Context) (users int, err error) {
	day := time.Now().UTC().Format(time.DateOnly)
	lease, err := r.locker.TryAcquire(ctx, "report", nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lease.Release()) }()
	ctx = lease.Context() // it ends if the lock is lost
	err = r.db.GetContext(ctx, &users, r.db.Rebind("SELECT users FROM reports WHERE day = ?"), day)
	if !errors.Is(err, sql.ErrNoRows) {
		return users, err
	}
	_, err = r.db.ExecContext(ctx, r.db.Rebind("INSERT INTO reports (day, users) SELECT ?, COUNT(*) FROM users"), day)
	if err != nil {
		return 0, err
	}
	err = r.db.GetContext(ctx, &users, r.db.Rebind("SELECT users FROM reports WHERE day = ?"), day)
	return users, err
}

// end
