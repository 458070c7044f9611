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

// heartbeat is how often the server sends a word while nothing changes.
const heartbeat = time.Second

// Options are the settings of a Source. Addr and User are needed.
type Options struct {
	// Addr is the server: host:port, as "db:3306" or "[::1]:3306", or the path of its socket.
	Addr string

	// User needs the privilege REPLICATION SLAVE, and SELECT for keys of some types (see the
	// package). Password is its.
	User, Password string

	// TLS, if it is not nil, is used for all connections; the server must offer it. Without a
	// ServerName, the host of Addr is that.
	TLS *tls.Config

	// ServerID is the number by which the server knows this replica: of two replicas with the same
	// one the server ends the older connection. Default: drawn by chance. Set it where Consumers
	// take over from each other (canal.Options.Locker), to the same for all of them, so that a dead
	// one's connection to the server ends at once.
	ServerID uint32

	// Timeout is after how long without a word, of which the server says one each second, a
	// connection is given up, and how long connecting and a question may take. Default: 30 s.
	Timeout time.Duration

	// Dial connects, for tunnels. Default: net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Logger is told, as a warning, of what may be wrong with how things are set up. Default:
	// slog.Default().
	Logger *slog.Logger
}

// Source reads a server's binary log. It keeps nothing between two runs: what has to be known is in
// its positions. It holds two connections while it runs.
type Source struct {
	options Options
	came    atomic.Bool // it has been let in before
	warned  sync.Once
}

var _ canal.Source = (*Source)(nil)

// New makes a Source. It does no I/O.
func New(options Options) (*Source, error) {
	o := options
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
		o.TLS.ServerName, _, _ = net.SplitHostPort(o.Addr) // of a socket none: it has to be given
	}
	return &Source{options: o}, nil
}

func (o *Options) check() error {
	if o.User == "" {
		return errors.New("Options.User is empty")
	}
	if len(o.User) > 255 {
		return fmt.Errorf("Options.User has %d bytes: 255 at most", len(o.User))
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
