package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// global are the flags of all commands.
type global struct {
	redisURL     string
	sentinel     string
	passwordFile string
	user         string
	tls          bool
	tlsCA        string
	db           int
	mysqlFile    string
	postgresFile string
	prefix       string
	timeout      time.Duration
	json         bool

	yes bool // of the commands that change something
}

const (
	minTimeout = 10 * time.Millisecond
	maxTimeout = time.Minute
)

// register registers the flags, with their current values as defaults.
func (g *global) register(flags *flag.FlagSet, env func(string) string) {
	if g.timeout == 0 {
		g.timeout, g.prefix = 5*time.Second, cmp.Or(env("CACHEASIDE_PREFIX"), "cacheaside")
	}
	flags.StringVar(&g.redisURL, "redis", g.redisURL,
		"the `URL` of Redis, redis://host:port/db or rediss://…; or host:port, separated by commas for a cluster or "+
			"sentinels. Default: localhost:6379")
	flags.StringVar(&g.sentinel, "sentinel-master", g.sentinel, "the master's `NAME`, if --redis names sentinels")
	flags.StringVar(&g.user, "redis-user", g.user, "the `NAME` of the Redis user")
	flags.StringVar(&g.passwordFile, "redis-password-file", g.passwordFile, "the `FILE` that holds the Redis password")
	flags.BoolVar(&g.tls, "tls", g.tls, "use TLS, where --redis is not a URL")
	flags.StringVar(&g.tlsCA, "tls-ca", g.tlsCA,
		"the `FILE` with the certificate authorities of Redis, in PEM. Default: the system's")
	flags.IntVar(&g.db, "db", g.db, "the `NUMBER` of the Redis database, where --redis is not a URL. Default: 0")
	flags.StringVar(&g.mysqlFile, "mysql-dsn-file", g.mysqlFile,
		"the `FILE` that holds the DSN of MySQL or MariaDB: user:password@tcp(host:3306)/database")
	flags.StringVar(&g.postgresFile, "postgres-dsn-file", g.postgresFile,
		"the `FILE` that holds the DSN of PostgreSQL: postgres://user:password@host:5432/database")
	flags.StringVar(&g.prefix, "prefix", g.prefix,
		"the `PREFIX` of the caches (Options.Prefix). Default: CACHEASIDE_PREFIX, or cacheaside")
	flags.DurationVar(&g.timeout, "timeout", g.timeout,
		"the longest `TIME` to wait for a reply of a server, from 10ms to 1m. Default: 5s")
	flags.BoolVar(&g.json, "json", g.json, "print JSON")
}

// environment describes the environment variables and the exit codes in the help.
const environment = `
environment:
  CACHEASIDE_REDIS              as --redis; this URL may hold a password
  CACHEASIDE_REDIS_PASSWORD     the Redis password
  CACHEASIDE_SENTINEL_PASSWORD  the password of the sentinels
  CACHEASIDE_PREFIX             as --prefix
  CACHEASIDE_MYSQL_DSN          the DSN of MySQL or MariaDB
  CACHEASIDE_POSTGRES_DSN       the DSN of PostgreSQL

exit codes: 0 done; 1 failed; 2 wrong usage; 3 not found
`

func (g *global) check() error {
	switch {
	case !keys.ValidName(g.prefix):
		return usagef("--prefix or CACHEASIDE_PREFIX: letters, digits, '_', '.' and '-'")
	case g.timeout < minTimeout || g.timeout > maxTimeout:
		return usagef("--timeout %v: from %v to %v", g.timeout, minTimeout, maxTimeout)
	case g.db < 0:
		return usagef("--db %d: not negative", g.db)
	}
	return nil
}

// listFlags lists flags without their values, which may be private.
func listFlags(w io.Writer, flags *flag.FlagSet) {
	flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(w, "  --%s%s\t%s\n", f.Name, value, usage)
	})
}
