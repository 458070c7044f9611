package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside"
)

// Settings that all processes of a run share. Lives are short, so that faults of a few seconds
// matter.
const (
	rowTTL       = 8 * time.Second // long enough that memory could serve a value past its bound
	leaseTTL     = 500 * time.Millisecond
	redisTimeout = 200 * time.Millisecond
	loadTimeout  = 150 * time.Millisecond
	opTimeout    = 3 * time.Second
)

// Keys: the hot ones, then the warm and the cold ones.
const (
	hotKeys  = 8
	warmKeys = 64
	coldKeys = 400
)

// config contains the settings of a process. It is passed in the environment.
type config struct {
	Process  int
	Place    int // in the fleet
	Seed     uint64
	Topology string
	Addrs    []string // the initial addresses of a client
	Master   string   // the master's name in the sentinels
	Proxies  map[string]string
	DSN      string
	Table    string
	File     string // of the process's history
	Prefix   string
	Sockets  string // the folder of the sockets that receive tokens

	Lag          time.Duration // of each request to Redis
	MaxStaleness time.Duration // how long memory may serve an outdated value
	RedisTimeout time.Duration
	QueueTimeout time.Duration // maximum wait of a load for its turn; 0: the default
	Groups       bool          // the rows have groups
	Wide         bool          // the wide mix
	Listeners    int           // other subscribers of the channel
}

const configVariable = "TORTURE_CONFIG"

func (c *config) environment() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return configVariable + "=" + string(b)
}

func readConfig() *config {
	c := &config{}
	if err := json.Unmarshal([]byte(os.Getenv(configVariable)), c); err != nil {
		panic(err)
	}
	return c
}

// dial connects to a server through this process's own proxy.
func (c *config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to, ok := c.Proxies[addr]
	if !ok {
		return nil, fmt.Errorf("no proxy to %s", addr)
	}
	d := net.Dialer{Timeout: 500 * time.Millisecond}
	conn, err := d.DialContext(ctx, network, to)
	if err != nil || c.Lag == 0 {
		return conn, err
	}
	return lagging{conn, c.Lag}, nil
}

// lagging is a connection that delays requests.
type lagging struct {
	net.Conn
	lag time.Duration
}

func (l lagging) Write(b []byte) (int, error) {
	time.Sleep(l.lag)
	return l.Conn.Write(b)
}

// client returns the client for cacheaside.New.
func (c *config) client() redis.UniversalClient {
	const pool = 16
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch c.Topology {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: c.Master, SentinelAddrs: c.Addrs,
			Dialer:   c.dial,
			PoolSize: pool, ContextTimeoutEnabled: true})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs, Dialer: c.dial,
			PoolSize: pool, ContextTimeoutEnabled: true, MaintNotificationsConfig: quiet})
	default:
		return redis.NewClient(&redis.Options{Addr: c.Addrs[0], Dialer: c.dial,
			PoolSize: pool, ContextTimeoutEnabled: true, MaintNotificationsConfig: quiet})
	}
}

// loaderOptions returns the options of a process's loaders.
func (c *config) loaderOptions() *cacheaside.LoaderOptions {
	o := &cacheaside.LoaderOptions{TTL: rowTTL * 3 / 4, StaleFor: rowTTL / 4, MemoryTTL: rowTTL,
		// Some callers wait for new values, and many values are reloaded early.
		SoftTimeout: time.Duration(c.Process%2) * 20 * time.Millisecond, EarlyRefresh: 50,
		LoadTimeout: loadTimeout, ErrorTTL: 50 * time.Millisecond}
	if c.Groups {
		o.Groups = cacheaside.GroupsOf(groupNames)
	}
	return o
}

// cacheOptions returns the options of a process's Cache.
func (c *config) cacheOptions() *cacheaside.Options {
	o := &cacheaside.Options{Prefix: c.Prefix, RedisTimeout: c.RedisTimeout, ReadTimeout: c.RedisTimeout,
		QueueTimeout: c.QueueTimeout, LeaseTTL: leaseTTL, MaxStaleness: c.MaxStaleness}
	if c.Wide {
		o.MemoryBytes, o.MaxLoads, o.StrictWrites = wideMemory, wideLoads, true
		o.ReplicaLag = time.Duration(c.Seed%2) * wideLag
	}
	return o
}
