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

// operator changes rows without the library: in the mariadb client if it is installed, otherwise
// over a separate connection.
type operator struct {
	server *mariaDB
	client string // path of the mariadb client, or ""
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
		return "Another program"
	}
	return "An operator in the mariadb client"
}

// command returns the shell command that an operator would type.
func (o *operator) command() []string {
	host, port, _ := net.SplitHostPort(o.server.Addr) // valid: the program is connected to it
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
