package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/address"
	"github.com/cacheaside/cacheaside/lock"
)

// Options holds the settings of a Locker on ZooKeeper. A nil pointer and the zero value mean the
// defaults.
type Options struct {
	// Options are those of every Locker. A TTL above half of the session timeout is reduced to
	// that, which is also its default. An Acquire that is already in the queue tolerates missing
	// replies for longer than Timeout: for as long as its session may live.
	lock.Options

	// SessionTimeout is how long the locks of a process remain after it was killed, suspended or
	// disconnected. The servers limit it, by default to 2 to 20 times their tickTime of 2 s, and
	// round it up to the next tick. In a live process, Lease.Context ends after half of it
	// without proof that the session lives. Default: 10 s. From 200 ms to 1 hour. Raise it so
	// that no long pause loses a lock; lower it to wait less for the lock of a dead process.
	SessionTimeout time.Duration

	// Root is the node under which the locks are created. Root and its parents are created if
	// they are missing. All processes that share locks must use the same Root. Default:
	// "/cacheaside/locks".
	Root string

	// ACL is the ACL of all created nodes. Default: zk.WorldACL(zk.PermAll), so anyone who can
	// reach the servers can see and delete locks.
	ACL []zk.ACL

	// Auth holds the identities that the Locker presents to the servers, for their ACLs. Default:
	// none.
	Auth []Auth

	// Dial makes connections, for example (&tls.Dialer{...}).DialContext. Default: TCP without
	// TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Auth is one identity, as for addauth: for example "digest" and "user:password".
type Auth struct {
	Scheme      string
	Credentials []byte
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.SessionTimeout = cmp.Or(d.SessionTimeout, 10*time.Second)
	d.Root = cmp.Or(d.Root, "/cacheaside/locks")
	if len(d.ACL) == 0 {
		d.ACL = zk.WorldACL(zk.PermAll)
	}
	if d.Dial == nil {
		d.Dial = new(net.Dialer).DialContext
	}
	return d
}

func (o Options) check() error {
	if o.SessionTimeout < 200*time.Millisecond || o.SessionTimeout > time.Hour {
		return fmt.Errorf("Options.SessionTimeout %v: must be from 200ms to 1h", o.SessionTimeout)
	}
	if !validRoot(o.Root) {
		return fmt.Errorf("Options.Root %q: must be a path of names of letters, digits, '_', '.', ':' and '-', like "+
			"/cacheaside/locks", o.Root)
	}
	for _, a := range o.Auth {
		if a.Scheme == "" {
			return errors.New("Options.Auth: a scheme is empty")
		}
	}
	return nil
}

// defaultPort is the port of servers that are given without one.
const defaultPort = "2181"

// addresses returns servers as host:port.
func addresses(servers []string) (checked []string, err error) {
	if len(servers) == 0 {
		return nil, errors.New("no servers")
	}
	checked = make([]string, len(servers))
	for i, s := range servers {
		if checked[i], err = address.HostPort(s, defaultPort); err != nil {
			return nil, fmt.Errorf("servers[%d]: %w", i, err)
		}
	}
	return checked, nil
}

func validRoot(root string) bool {
	names := strings.Split(root, "/")
	if names[0] != "" || len(names) < 2 || len(root) > 1000 || names[1] == "zookeeper" {
		return false
	}
	for _, name := range names[1:] {
		if name == "" || escape(name) != name {
			return false
		}
	}
	return true
}

// escape returns a valid node name for any key. Different keys have different names.
func escape(key string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == ':', c == '-',
			c == '.' && i > 0:
			// "." and ".." are not allowed
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// locker returns the options of the lock.Locker. Its TTL is the maximum for a session with the
// requested timeout.
func (o Options) locker() *lock.Options {
	if o.TTL == 0 {
		o.TTL = maxTTL(o.SessionTimeout)
	}
	return &o.Options
}
