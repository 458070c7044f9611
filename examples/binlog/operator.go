package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// client is the command-line client of a database.
type client struct {
	name     string   // "mariadb"
	programs []string // the possible names of its program
	args     []string
	execute  string   // the flag before statements
	one      bool     // the flag is given once, with all statements
	env      []string // with the password
}

// operator changes rows without the library: in the client if it is installed, otherwise over a
// separate connection.
type operator struct {
	server *server
	client string // path of the client, or ""
}

func newOperator(server *server) *operator {
	for _, name := range server.client.programs {
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
	return "An operator in the " + o.server.client.name + " client"
}

// command returns the shell command that an operator would type.
func (o *operator) command() []string {
	return append([]string{o.server.client.name}, o.server.client.args...)
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
	args := o.command()[1:]
	if o.server.client.one {
		statements = []string{strings.Join(statements, "; ")}
	}
	for _, s := range statements {
		args = append(args, o.server.client.execute+s)
	}
	cmd := exec.CommandContext(ctx, o.client, args...)
	cmd.Env = append(os.Environ(), o.server.client.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", o.client, err, bytes.TrimSpace(out))
	}
	return nil
}
