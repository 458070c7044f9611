package consistency

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
)

// prepared puts an item whose ID is new by a statement that the server has prepared, once for each
// connection of db. That is one trip, as the text is, but the server does not parse it each time,
// which is half of what an INSERT takes. Where the server prepares no statements the text goes.
type prepared struct {
	outbox *SQLOutbox
	db     *sqlx.DB

	stmt      atomic.Pointer[sql.Stmt]  // nil: there is none
	pause     atomic.Pointer[time.Time] // when it is tried again to prepare one; nil: at once
	preparing sync.Mutex
}

const (
	preparedPause   = time.Minute // after the server has refused to prepare, or to execute
	preparedLongest = 4096        // bytes of a key's text: longer ones go as text
)

// ready prepares the statement if there is none. It comes before BEGIN: it takes a connection, for
// which a caller that has one already could wait for ever, where the pool has no other. One caller
// prepares, and the others do not wait for it.
func (p *prepared) ready(ctx context.Context) {
	if p == nil || p.stmt.Load() != nil || !p.preparing.TryLock() {
		return
	}
	defer p.preparing.Unlock()
	if until := p.pause.Load(); p.stmt.Load() != nil || until != nil && time.Now().Before(*until) {
		return
	}
	text, err := p.outbox.own()
	if err != nil {
		return
	}
	stmt, err := p.db.PrepareContext(ctx, text.prepare())
	switch {
	case err == nil:
		p.stmt.Store(stmt)
	case ctx.Err() == nil:
		p.rest()
	}
}

func (p *prepared) rest() {
	until := time.Now().Add(preparedPause)
	p.pause.Store(&until)
}

// putIn is the outbox's.
func (p *prepared) putIn(ctx context.Context, tx *sqlx.Tx, items []Item) error {
	stmt := p.stmt.Load()
	if stmt == nil || len(items) != 1 || len(items[0].Key.Text) > preparedLongest {
		return p.outbox.putIn(ctx, tx, items, false)
	}
	id, err := checkItem(items[0])
	if err == nil {
		_, err = tx.StmtContext(ctx, stmt).ExecContext(ctx, arguments(id, &items[0])...)
	}
	if answer, ok := errors.AsType[*mysql.MySQLError](err); ok && !inTheWay(err) {
		p.drop(stmt)
		if refused(answer) {
			return p.outbox.putIn(ctx, tx, items, false)
		}
	}
	return p.outbox.failed("put", err)
}

// refused tells whether the server has said that it does not execute the statement, before it has
// done anything. After another error it is not certain that the transaction goes on, and a text
// could be one by itself.
func refused(answer *mysql.MySQLError) bool {
	switch answer.Number {
	case mysqlTooManyPrepared, mysqlNotPrepared, mysqlCannotPrepare, mysqlPrepareAnew:
		return true
	}
	return false
}

// drop has items go as text for a while.
func (p *prepared) drop(stmt *sql.Stmt) {
	if p.stmt.CompareAndSwap(stmt, nil) {
		p.rest()
		_ = stmt.Close() // when the transactions that use it have ended
	}
}

// close has the server forget the statement.
func (p *prepared) close() {
	if p == nil {
		return
	}
	if stmt := p.stmt.Swap(nil); stmt != nil {
		_ = stmt.Close()
	}
}
