package pglogical

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// connect opens a connection, for replication or for queries.
func (s *Source) connect(ctx context.Context, replication bool) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	config := s.config.Copy()
	if replication {
		config.RuntimeParams["replication"] = "database"
		config.RuntimeParams["wal_sender_timeout"] = strconv.FormatInt(s.options.Timeout.Milliseconds(), 10)
	}
	return pgconn.ConnectConfig(ctx, config)
}

// session is a connection for queries. It is safe for concurrent use.
type session struct {
	timeout time.Duration
	version int // of the server; set by checkSettings
	mu      sync.Mutex
	conn    *pgconn.PgConn
}

// queryError is an error of a session, not of the replication connection.
type queryError struct{ error }

func (q *queryError) Unwrap() error { return q.error }

// ask executes a statement, and returns the rows of the result as text. NULL is "".
func (s *session) ask(ctx context.Context, statement string, args ...string) ([][]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errors.New("the server does not reply to a query"))
	defer cancel()
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	result := s.conn.ExecParams(ctx, statement, params, nil, nil, nil).Read()
	if result.Err != nil {
		return nil, &queryError{result.Err}
	}
	rows := make([][]string, len(result.Rows))
	for i, r := range result.Rows {
		rows[i] = make([]string, len(r))
		for j, v := range r {
			rows[i][j] = string(v)
		}
	}
	return rows, nil
}

// closeNow closes a connection without waiting for the server.
func closeNow(c *pgconn.PgConn) {
	_ = c.Conn().Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Close(ended)
}
