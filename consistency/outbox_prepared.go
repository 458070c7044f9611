package consistency

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
)

// prepared puts an item whose ID is new by a statement that the server prepares on each connection
// of db that a row is put on. That is one trip, as the text is, but the server does not parse it
// each time, which takes longer than the INSERT itself. Where it cannot be had the text goes.
//
// The statement is not closed while writes may be under way: database/sql then waits for what each
// of its connections does, without a context, and that may be to wait for rows that a write has
// locked.
type prepared struct {
	outbox *SQLOutbox
	db     *sqlx.DB
	wait   time.Duration // for the server to prepare it

	stmt      atomic.Pointer[sql.Stmt]  // nil: there is none
	until     atomic.Pointer[time.Time] // until then items go as text; nil: they need not
	preparing sync.Mutex
}

const (
	preparedWait    = time.Second
	preparedRefused = time.Minute // that items go as text after the server has refused
	preparedFailed  = time.Hour   // after an error that has cost a write
	preparedNever   = 1 << 62 * time.Nanosecond
	preparedLongest = 4096 // bytes of a key's text: longer ones go as text
)

// ready has the statement be prepared if it was not. It comes before BEGIN, as it takes a
// connection, for which a caller that has one already could wait for ever, where the pool has no
// other. One caller prepares, and the others do not wait for it.
func (p *prepared) ready(ctx context.Context) {
	if p == nil || p.stmt.Load() != nil || p.resting() || !p.preparing.TryLock() {
		return
	}
	defer p.preparing.Unlock()
	if p.stmt.Load() != nil {
		return
	}
	own, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	stmt, err := p.prepare(own)
	switch {
	case err == nil:
		p.stmt.Store(stmt)
	case errors.Is(err, errInterpolates):
		p.rest(preparedNever)
	case ctx.Err() == nil:
		p.rest(preparedRefused)
	}
}

var errInterpolates = errors.New("the DSN has interpolateParams")

// prepare leaves those alone whose DSN has interpolateParams: they have decided against prepared
// statements, perhaps for a proxy in front of the server. The driver tells by taking arguments.
func (p *prepared) prepare(ctx context.Context) (*sql.Stmt, error) {
	text, err := p.outbox.own()
	if err != nil {
		return nil, err
	}
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	err = conn.Raw(func(c any) error {
		if c, ok := c.(driver.ExecerContext); ok {
			switch _, err := c.ExecContext(ctx, "DO ?", []driver.NamedValue{{Ordinal: 1, Value: int64(0)}}); {
			case err == nil:
				return errInterpolates
			case !errors.Is(err, driver.ErrSkip):
				return err
			}
		}
		return nil
	})
	_ = conn.Close()
	if err != nil {
		return nil, err
	}
	return p.db.PrepareContext(ctx, text.prepare())
}

func (p *prepared) resting() bool {
	until := p.until.Load()
	return until != nil && time.Now().Before(*until)
}

func (p *prepared) rest(d time.Duration) {
	until := time.Now().Add(d)
	p.until.Store(&until)
}

// putIn is the outbox's.
func (p *prepared) putIn(ctx context.Context, tx *sqlx.Tx, items []Item) error {
	stmt := p.stmt.Load()
	if stmt == nil || p.resting() || len(items) != 1 || len(items[0].Key.Text) > preparedLongest {
		return p.outbox.putIn(ctx, tx, items, false)
	}
	id, err := checkItem(items[0])
	if err == nil {
		_, err = tx.StmtContext(ctx, stmt).ExecContext(ctx, arguments(id, &items[0])...)
	}
	switch answer, ok := errors.AsType[*mysql.MySQLError](err); {
	case !ok || inTheWay(err):
	case refused(answer):
		p.rest(preparedRefused)
		return p.outbox.putIn(ctx, tx, items, false)
	default:
		p.rest(preparedFailed)
	}
	return p.outbox.failed("put", err)
}

// refused tells whether the server has refused the statement in a way that leaves the transaction
// as it was. After another error the transaction may have ended, and a text would be one by itself.
func refused(answer *mysql.MySQLError) bool {
	switch answer.Number {
	case mysqlTooManyPrepared, mysqlCannotPrepare, mysqlPrepareAnew, mysqlNull, mysqlNoDigits:
		return true
	}
	return false
}

// close has the server forget the statement, and waits for that as long as ctx.
func (p *prepared) close(ctx context.Context) {
	if p == nil {
		return
	}
	stmt := p.stmt.Swap(nil)
	if stmt == nil {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = stmt.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done(): // it goes on until the connections have ended what they do
	}
}
