package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
)

type config struct {
	addr     string // host:port; empty: the program starts a server
	user     string
	password string
	redis    string // host:port; empty: embedded
	postgres string // URL; empty: MariaDB
	follow   bool
}

const usage = `Binlog changes rows without the library, as an operator would in the mariadb client, and measures
how many milliseconds the caches of several processes need to follow. It starts its own MariaDB (the
package mariadb-server) in a temporary folder; Redis is embedded.

Usage:  go -C examples/binlog run . [flags]

`

const examples = `
Examples:
  go -C examples/binlog run . -follow
  MYSQL_PASSWORD=secret go -C examples/binlog run . -addr 127.0.0.1:3306 -user admin -redis 127.0.0.1:6379
  PGPASSWORD=secret go -C examples/binlog run . -postgres postgres://admin@127.0.0.1:5432/postgres

Your own server needs log_bin, binlog_format=ROW and binlog_row_metadata=FULL, and the user needs REPLICATION
SLAVE and all privileges on the database ` + database + `. PostgreSQL needs wal_level=logical, and the user
the attributes CREATEDB and REPLICATION. The program creates this database and drops it at the end, also after
Ctrl-C; it refuses to start if the database exists. It also deletes its keys in Redis.
`

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{password: os.Getenv("MYSQL_PASSWORD")}
	flags := flag.NewFlagSet("binlog", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.addr, "addr", "",
		"`address` (host:port) of a MariaDB or MySQL to use instead of one that is started")
	flags.StringVar(&c.user, "user", "root",
		"the `user` there; the environment variable MYSQL_PASSWORD is the password")
	flags.StringVar(&c.postgres, "postgres", "",
		"`URL` of a PostgreSQL to use instead of MariaDB, such as postgres://admin@127.0.0.1:5432/postgres; the "+
			"environment variable PGPASSWORD is the password")
	flags.StringVar(&c.redis, "redis", "", "`address` (host:port) of a real Redis to use instead of the embedded one")
	flags.BoolVar(&c.follow, "follow", false, "keep running, and show each change that you make, until Ctrl-C")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
		fmt.Fprint(stderr, examples)
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	err := cmp.Or(address("-addr", c.addr), address("-redis", c.redis))
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case c.postgres != "" && c.addr != "":
		err = errors.New("-addr, -postgres: only one of them")
	case c.user == "":
		err = errors.New("-user: it is empty")
	}
	if err != nil {
		fmt.Fprintf(stderr, "binlog: %v (see -help)\n", err)
	}
	return c, err
}

func address(name, value string) error {
	if value == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(value); err != nil {
		return fmt.Errorf("%s %q: host:port", name, value)
	}
	return nil
}
