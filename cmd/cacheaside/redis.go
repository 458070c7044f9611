package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/noanswer"
)

// target is the server that --redis or the environment names.
type target struct {
	url      *redis.Options // of a URL; nil: addresses
	addrs    []string
	password string
	tls      *tls.Config
}

// openRedis returns a client. If one address is given, it asks the server whether it is a node of
// a cluster, which determines the type of the client.
func (t *tool) openRedis(ctx context.Context) (redis.UniversalClient, error) {
	to, err := t.target()
	if err != nil {
		return nil, err
	}
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch {
	case t.sentinel != "":
		if to.url != nil {
			return nil, usagef("--sentinel-master: --redis names sentinels, as host:port, not a URL")
		}
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: t.sentinel, SentinelAddrs: to.addrs,
			SentinelPassword: t.env("CACHEASIDE_SENTINEL_PASSWORD"),
			Username:         t.user, Password: to.password, DB: t.db, TLSConfig: to.tls, ContextTimeoutEnabled: true,
			MaxRetries:  -1,
			DialTimeout: t.timeout, ReadTimeout: t.timeout, WriteTimeout: t.timeout, PoolTimeout: t.timeout}), nil
	case len(to.addrs) > 1:
		if t.db != 0 {
			return nil, usagef("--db %d: a cluster has database 0 only", t.db)
		}
		return t.openCluster(to.addrs, t.user, to.password, to.tls), nil
	}
	o := to.url
	if o == nil {
		o = &redis.Options{Addr: to.addrs[0], DB: t.db, TLSConfig: to.tls}
	}
	o.Username, o.Password = cmp.Or(t.user, o.Username), cmp.Or(to.password, o.Password)
	o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries, o.MaintNotificationsConfig = true, -1, 1, quiet
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = t.timeout, t.timeout, t.timeout, t.timeout
	return t.openOne(ctx, o)
}

func (t *tool) openCluster(addrs []string, user, password string, tls *tls.Config) *redis.ClusterClient {
	each := t.timeout / time.Duration(len(addrs)+1) // a cluster client ignores the context while it discovers its nodes
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: user, Password: password,
		TLSConfig: tls, ContextTimeoutEnabled: true,
		DialTimeout: each, ReadTimeout: t.timeout, WriteTimeout: t.timeout, PoolTimeout: t.timeout, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
}

// openOne returns a client for a server, or for the cluster that the server belongs to.
func (t *tool) openOne(ctx context.Context, o *redis.Options) (redis.UniversalClient, error) {
	rdb := redis.NewClient(o)
	bound, cancel := t.limited(ctx)
	defer cancel()
	clustered, err := conn.Clustered(bound, rdb)
	if err == nil && !clustered || ctx.Err() != nil { // interrupted: nothing follows
		return rdb, nil
	}
	if closed := rdb.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil:
		return nil, t.redisError(err)
	case o.DB != 0:
		return nil, usagef("--db %d: %s is a node of a cluster, which has database 0 only", o.DB, o.Addr)
	}
	return t.openCluster([]string{o.Addr}, o.Username, o.Password, o.TLSConfig), nil
}

// target returns the Redis that the flags and the environment name. Its errors do not repeat their
// values, which may contain a password.
func (t *tool) target() (to target, err error) {
	from, where := t.redisURL, "--redis"
	if from == "" {
		from, where = cmp.Or(t.env("CACHEASIDE_REDIS"), "localhost:6379"), "CACHEASIDE_REDIS"
	} else if mayHavePassword(from) {
		return to, usagef("--redis: a password in an argument is visible in lists of processes; put it into " +
			"CACHEASIDE_REDIS_PASSWORD, the URL into CACHEASIDE_REDIS, or use --redis-password-file")
	}
	if to.password, err = t.password(); err != nil {
		return to, err
	}
	var roots *x509.CertPool
	if t.tlsCA != "" {
		if roots, err = readRoots(t.tlsCA); err != nil {
			return to, err
		}
	}
	if strings.Contains(from, "://") {
		if to.url, err = redis.ParseURL(from); err != nil {
			return to, usagef("%s: not a URL such as redis://user@host:port/db, or rediss:// for TLS", where)
		}
		switch {
		case t.db != 0:
			return to, usagef("--db: %s is a URL; put the database into it", where)
		case to.url.TLSConfig == nil && (t.tls || roots != nil):
			return to, usagef("--tls: %s is a URL; for TLS it begins with rediss://", where)
		case to.url.TLSConfig != nil:
			to.url.TLSConfig.RootCAs = roots
		}
		return to, nil
	}
	if t.tls || roots != nil {
		to.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	for addr := range strings.SplitSeq(from, ",") {
		addr = strings.TrimSpace(addr)
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" ||
			strings.ContainsAny(addr, "@/ ") {
			return to, usagef("%s: host:port, several of them separated by commas, or a URL such as "+
				"redis://host:port/db", where)
		}
		to.addrs = append(to.addrs, addr)
	}
	return to, nil
}

// mayHavePassword also takes for a URL with a password what cannot be read as one.
func mayHavePassword(s string) bool {
	if !strings.Contains(s, "://") {
		return strings.Contains(s, "@")
	}
	u, err := url.Parse(s)
	if err != nil {
		return strings.Contains(s, "@")
	}
	_, set := u.User.Password()
	return set || strings.Contains(strings.ToLower(u.RawQuery), "pass")
}

func (t *tool) password() (string, error) {
	if t.passwordFile == "" {
		return t.env("CACHEASIDE_REDIS_PASSWORD"), nil
	}
	return readSecret("--redis-password-file", t.passwordFile)
}

// readSecret reads a small file, without its line ending.
func readSecret(name, path string) (string, error) {
	b, err := readBounded(path, 64<<10)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s: the file is empty", name)
	}
	return secret, nil
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", path, most)
	}
	return b, err
}

func readRoots(path string) (*x509.CertPool, error) {
	b, err := readBounded(path, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, errors.New("--tls-ca: no certificate in the file")
	}
	return roots, nil
}

// onRedis calls f with a client, and closes the client afterwards. Its errors suggest a cause.
func (t *tool) onRedis(ctx context.Context, f func(ctx context.Context, rdb redis.UniversalClient) error) error {
	rdb, err := t.openRedis(ctx)
	if err != nil {
		return err
	}
	defer rdb.Close() //nolint:errcheck // nothing is to be done about it
	return t.redisError(f(ctx, rdb))
}

func (t *tool) redisError(err error) error {
	switch {
	case err == nil, errors.Is(err, errAbsent), errors.Is(err, errDeclined):
		return err
	case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "ASK"):
		return fmt.Errorf("this Redis is a node of a cluster: give two of its nodes, separated by a comma: %w", err)
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		return fmt.Errorf("the Redis server refuses the user or the password: put the password into "+
			"CACHEASIDE_REDIS_PASSWORD or --redis-password-file, and the user into --redis-user: %w", err)
	case errors.Is(err, context.DeadlineExceeded), noanswer.IsTimeout(err):
		return &slowError{"Redis", t.timeout, err}
	}
	return err
}

// slowError names the server that did not reply in time.
type slowError struct {
	who     string
	timeout time.Duration
	err     error
}

func (s *slowError) Error() string {
	return fmt.Sprintf("%s did not reply within --timeout %v: %v", s.who, s.timeout, s.err)
}

func (s *slowError) Unwrap() error { return s.err }

// limited returns a context for one request to a server.
func (t *tool) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.timeout)
}

// masters returns clients of the servers that hold keys.
func masters(ctx context.Context, rdb redis.UniversalClient) ([]*redis.Client, error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return []*redis.Client{rdb.(*redis.Client)}, nil
	}
	found := make(chan *redis.Client, 1000)
	if err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		select {
		case found <- node:
			return nil
		default:
			return errors.New("the cluster has more than 1,000 masters")
		}
	}); err != nil {
		return nil, err
	}
	close(found)
	var all []*redis.Client
	for node := range found {
		all = append(all, node)
	}
	return all, nil
}

// home returns a client of the server that holds a key.
func home(ctx context.Context, rdb redis.UniversalClient, key string) (*redis.Client, error) {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return rdb.(*redis.Client), nil
}
