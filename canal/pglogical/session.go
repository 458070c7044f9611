package pglogical

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cacheaside/cacheaside/canal/event"
)

// connect opens a connection for queries.
func (s *Source) connect(ctx context.Context) (*pgconn.PgConn, error) { return s.connectWith(ctx, nil) }

// connectReplication opens a connection for replication, on which texts have this encoding.
func (s *Source) connectReplication(ctx context.Context, encoding string) (*pgconn.PgConn, error) {
	return s.connectWith(ctx, map[string]string{
		"replication":        "database",
		"wal_sender_timeout": strconv.FormatInt(s.options.Timeout.Milliseconds(), 10),
		"client_encoding":    encoding,
	})
}

// connectWith opens a connection with these parameters in addition to the usual ones.
func (s *Source) connectWith(ctx context.Context, parameters map[string]string) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	config := s.config.Copy()
	maps.Copy(config.RuntimeParams, parameters)
	if s.options.Password != nil {
		var err error
		if config.Password, err = s.options.Password(ctx); err != nil {
			return nil, fmt.Errorf("Options.Password: %w", err)
		}
	}
	return pgconn.ConnectConfig(ctx, config)
}

// session is a connection for queries. It is safe for concurrent use.
type session struct {
	timeout time.Duration
	version int // of the server; set by checkSettings

	refused   map[event.Table]error // tables that could not be added to the publication; used by one goroutine
	refusedAt time.Time

	mu   sync.Mutex
	conn *pgconn.PgConn
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
