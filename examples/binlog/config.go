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
	addr     string // host:port; empty: a server of its own
	user     string
	password string
	redis    string // host:port; empty: embedded
	follow   bool
}

const usage = `Binlog changes rows from outside of the library, as an operator would in the mariadb client, and shows
after how many milliseconds the caches of several processes have followed. It starts a MariaDB of its own
(the package mariadb-server), in a temporary folder; Redis is embedded.

Usage:  go -C examples/binlog run . [flags]

`

const examples = `
Examples:
  go -C examples/binlog run . -follow
  MYSQL_PASSWORD=secret go -C examples/binlog run . -addr 127.0.0.1:3306 -user admin -redis 127.0.0.1:6379

A server of yours needs log_bin, binlog_format=ROW and binlog_row_metadata=FULL, and the user REPLICATION SLAVE
and all privileges on the database ` + database + `. That is made there, and removed at the end, also after
Ctrl-C; if it is there already, nothing is done. What is made in Redis is removed, too.
`

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{password: os.Getenv("MYSQL_PASSWORD")}
	flags := flag.NewFlagSet("binlog", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.addr, "addr", "", "`address` (host:port) of a MariaDB or MySQL to use instead of one that is started")
	flags.StringVar(&c.user, "user", "root", "the `user` there; the environment variable MYSQL_PASSWORD is the password")
	flags.StringVar(&c.redis, "redis", "", "`address` (host:port) of a real Redis to use instead of the embedded one")
	flags.BoolVar(&c.follow, "follow", false, "stay, and show each change that you make, until Ctrl-C")
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
	case c.user == "":
		err = errors.New("-user: it is empty")
	}
	if err != nil {
		fmt.Fprintf(stderr, "binlog: %v (-help tells more)\n", err)
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
