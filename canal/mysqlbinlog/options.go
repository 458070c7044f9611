package mysqlbinlog

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/address"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// heartbeat is the interval at which the server sends a heartbeat while nothing changes.
const heartbeat = time.Second

// Options are the settings of a Source. Addr and User are required.
type Options struct {
	// Addr is the address of the server: host:port, such as "db:3306" or "[::1]:3306", or the
	// path of its socket. If it leads to another server than before, such as a replica that was
	// promoted, all bound tables are replaced once.
	Addr string

	// User needs the privilege REPLICATION SLAVE, and SELECT for keys of some types (see the
	// package comment). Password is the password of User.
	User, Password string

	// PasswordFunc returns the password of the user in the place of Password. It is called before
	// each new connection, so that a password that changes, such as a token of a cloud provider,
	// needs no restart. Its context ends after Timeout. If it returns an error, Run fails, and the
	// Consumer tries again. Default: nil, Password.
	PasswordFunc func(ctx context.Context) (string, error)

	// TLS, if it is not nil, is used for all connections, and the server must support it. If
	// ServerName is empty, the host of Addr is used. Default: nil, no TLS.
	TLS *tls.Config

	// ServerID is the ID of this replica. If two replicas have the same ID, the server closes the
	// older connection. Set the same ID for all Consumers that take over from each other
	// (canal.Options.Locker), so that the connection of a dead Consumer is closed at once.
	// Default: a random number.
	ServerID uint32

	// Timeout is how long the Source waits for the server: for data on the log connection, where
	// a heartbeat arrives every second, for a new connection, and for the reply to a query. After
	// that time Run returns an error. Default: 30 s.
	Timeout time.Duration

	// Dial opens connections, for example through a tunnel. Default: that of net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Logger receives warnings about settings that may be wrong. Default: slog.Default().
	Logger *slog.Logger
}

// A Source reads the binary log of a server. It stores nothing between two runs, because
// positions contain all necessary state. It uses two connections while it runs.
type Source struct {
	options   Options
	chosen    bool        // Options.ServerID is set, and not random
	connected atomic.Bool // the server has accepted the user before
	warned    sync.Once
}

var _ canal.IdentifiedSource = (*Source)(nil)

// New returns a Source. It does no I/O; Run does.
func New(options Options) (*Source, error) {
	o, chosen := options, options.ServerID != 0
	o.ServerID = cmp.Or(o.ServerID, 1<<31|rand.Uint32())
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Logger = limitedlog.Guarded(cmp.Or(o.Logger, slog.Default()))
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("mysqlbinlog: %w", err)
	}
	if o.TLS != nil && o.TLS.ServerName == "" {
		o.TLS = o.TLS.Clone()
		o.TLS.ServerName, _, _ = net.SplitHostPort(o.Addr) // a socket has no host: the caller must set ServerName
	}
	return &Source{options: o, chosen: chosen}, nil
}

// Identity returns Options.ServerID, if it is set: the server accepts one Source with an ID. It
// does not contain the address: two processes may reach one server by two addresses. See
// canal.IdentifiedSource.
func (s *Source) Identity() (reads string, exclusive bool) {
	if !s.chosen {
		return "", false
	}
	return fmt.Sprintf("server ID %d", s.options.ServerID), true
}

func (o *Options) check() error {
	if o.User == "" {
		return errors.New("Options.User is empty")
	}
	if len(o.User) > 255 {
		return fmt.Errorf("Options.User has %d bytes, the maximum is 255", len(o.User))
	}
	if o.Timeout < heartbeat {
		return fmt.Errorf("Options.Timeout %v: at least %v", o.Timeout, heartbeat)
	}
	if strings.HasPrefix(o.Addr, "/") {
		return nil
	}
	if _, err := address.HostPort(o.Addr, ""); err != nil {
		return fmt.Errorf("Options.Addr: %w; give host:port, or the path of a socket", err)
	}
	return nil
}
