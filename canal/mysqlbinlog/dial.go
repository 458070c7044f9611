package mysqlbinlog

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
)

// dialer opens the connections of a run, and closes them at its end. go-mysql's own Close waits
// for replies, which a hanging server does not send.
type dialer struct {
	options *Options

	mu    sync.Mutex
	open  []net.Conn
	ended bool
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.options.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		_ = c.Close()
		return nil, context.Canceled
	}
	d.open = append(d.open, c)
	return c, nil
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for _, c := range d.open {
		_ = c.Close()
	}
}

// session is a connection for queries. It is safe for concurrent use.
type session struct {
	timeout time.Duration
	mu      sync.Mutex
	conn    *client.Conn
}

func (d *dialer) session(ctx context.Context) (*session, error) {
	o := d.options
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	password, err := o.password(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := client.ConnectWithDialer(ctx, "", o.Addr, o.User, password, "", d.dial, func(c *client.Conn) error {
		c.SetTLSConfig(o.TLS)
		c.ReadTimeout, c.WriteTimeout = o.Timeout, o.Timeout
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &session{timeout: o.Timeout, conn: conn}, nil
}

// password returns the password for a new connection.
func (o *Options) password(ctx context.Context) (string, error) {
	if o.PasswordFunc == nil {
		return o.Password, nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	password, err := o.PasswordFunc(ctx)
	if err != nil {
		return "", fmt.Errorf("Options.PasswordFunc: %w", err)
	}
	return password, nil
}

// ask executes a statement, and returns the rows of the result as text. NULL is "".
func (s *session) ask(statement string, args ...any) ([][]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	result, err := s.conn.Execute(statement, args...)
	if err != nil {
		return nil, err
	}
	if result.Resultset == nil {
		return nil, nil
	}
	rows := make([][]string, result.RowNumber())
	for i := range rows {
		rows[i] = make([]string, result.ColumnNumber())
		for j := range rows[i] {
			if rows[i][j], err = result.GetString(i, j); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}
