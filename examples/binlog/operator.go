package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// operator changes rows outside of the library: in the mariadb client, if that is installed, else
// over a connection of its own.
type operator struct {
	server *mariaDB
	client string // its path; "": there is none
}

func newOperator(server *mariaDB) *operator {
	for _, name := range []string{"mariadb", "mysql"} {
		if path, err := exec.LookPath(name); err == nil {
			return &operator{server, path}
		}
	}
	return &operator{server: server}
}

func (o *operator) String() string {
	if o.client == "" {
		return "another program"
	}
	return "an operator, in the mariadb client"
}

// command is what one types to be the operator.
func (o *operator) command() []string {
	host, port, _ := net.SplitHostPort(o.server.Addr) // it was connected to
	return []string{"mariadb", "--no-defaults", "--protocol=tcp", "--host=" + host, "--port=" + port, "--user=" + o.server.User, database}
}

func (o *operator) do(ctx context.Context, statements ...string) error {
	if o.client == "" {
		for _, s := range statements {
			if _, err := o.server.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
	cmd := exec.CommandContext(ctx, o.client, append(o.command()[1:], "--execute="+strings.Join(statements, "; "))...)
	if o.server.Password != "" {
		cmd.Env = append(os.Environ(), "MYSQL_PWD="+o.server.Password)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", o.client, err, bytes.TrimSpace(out))
	}
	return nil
}
