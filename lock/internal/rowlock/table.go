package rowlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"
)

// A Table executes the statements of one kind of database on the table of the locks. A lock is a
// row with these columns: its name; owner, the id of the request that has acquired it last; the
// last token; and expires_at, when the lock expires by the server's clock. A release sets
// expires_at to 1970 and keeps owner, so a holder that repeats the release recognizes its own.
//
// In the row of a read-write lock or a semaphore, owner contains all holders, as holders.State, and
// each change of it takes the next token. Its name begins with the kind in braces, which no other
// name begins with, because the prefix of a Locker has no braces.
//
// Each statement is committed when its method returns. A statement reads the clock when it compares
// or changes a row. If it had to wait for the row or the table, it uses the time after the wait. No
// setting of the session affects that clock.
type Table interface {
	// Read reads a lock, and the clock even if the lock does not exist.
	Read(ctx context.Context, c *sql.Conn, key string) (Row, error)

	// Insert inserts a free lock unless the lock exists.
	Insert(ctx context.Context, c *sql.Conn, key string) error

	// Take acquires a lock that is free or t.Mine, if its token is still t.Seen and the clock has
	// not passed t.Bound. So a delayed request is not carried out after its caller has stopped
	// waiting. It sets the token to t.Token, and the owner to t.ID.
	Take(ctx context.Context, c *sql.Conn, key string, t Take) (taken bool, err error)

	// Extend sets the expiry to ttl from now on if the request with this id has the lock.
	Extend(ctx context.Context, c *sql.Conn, key, id string, ttl time.Duration) (held bool, err error)

	// Release releases the lock if the request with this id has it. held is true also if an
	// earlier release of the same holder has released it.
	Release(ctx context.Context, c *sql.Conn, key, id string) (held bool, err error)

	// CleanUp undoes requests. It also changes the token that they expect, so they cannot be
	// carried out later.
	CleanUp(ctx context.Context, c *sql.Conn, key string, requests []Request) error

	// Retryable reports whether a retry on another connection may succeed.
	Retryable(err error) bool

	// Explain adds to err what the user can do about it. A nil err stays nil.
	Explain(err error) error
}

// Row is the state of a lock that was read.
type Row struct {
	Exists    bool
	Clock     int64 // server time in microseconds
	Token     int64
	Owner     string
	Remaining time.Duration // until the lock expires; the lock is free if it is not positive

	readAt time.Time // local time before the read
}

// Request identifies a statement that acquires a lock.
type Request struct {
	ID   string // letters and digits
	Seen int64  // the token that the statement expects in the row
}

// Take contains the parameters of a call of Table.Take.
type Take struct {
	Request
	Mine  bool  // an earlier request of the same Acquire may have the lock
	Token int64 // the next token: greater than Seen, and at least the server time of the read
	Bound int64 // the request is late after this server time, in microseconds
	TTL   time.Duration
}

// session is one connection. On a dedicated connection, database/sql does not repeat statements.
type session struct {
	conn    *sql.Conn
	timeout time.Duration // of each call of do
	broken  bool          // the connection must not be used again
}

func open(ctx context.Context, db *sql.DB, timeout time.Duration) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, timeout: timeout}, nil
}

// close returns the connection to the pool, or closes it if it is broken.
func (s *session) close() {
	if s.broken {
		s.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // makes database/sql discard it
	}
	s.conn.Close() //nolint:errcheck // the session is not used again
}

// do calls f with the timeout. After an error the connection is not used again.
func (s *session) do(ctx context.Context, f func(context.Context, *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := f(ctx, s.conn)
	s.broken = s.broken || err != nil
	return err
}
