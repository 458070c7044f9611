package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
)

var (
	// errAbsent means that the requested item does not exist. The command has reported that.
	errAbsent = errors.New("absent")

	errDeclined = errors.New("nothing was changed")
)

// usageError is a mistake of the user.
type usageError struct{ text string }

func (u *usageError) Error() string { return u.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// tool is one run of the program.
type tool struct {
	global
	env    func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// command is a command of the tool. prepare registers its flags, and returns the function that
// executes it.
type command struct {
	name    string // one word or two
	args    string
	short   string
	long    string
	example string
	prepare func(t *tool, flags *flag.FlagSet) func(ctx context.Context, args []string) error
}

// flags returns the flags of all commands. Flags that were given before the command keep their
// values.
func (t *tool) flags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // complain prints the errors
	flags.Usage = func() {}
	t.register(flags, t.env)
	return flags
}
