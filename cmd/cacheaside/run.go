package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitAbsent = 3
)

// run executes the program. args do not include the name of the program. run returns the exit code.
func run(ctx context.Context, args []string, env func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	t := &tool{env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	err := t.run(ctx, args)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errAbsent):
		return exitAbsent
	case errors.As(err, &usage):
		t.complain(err)
		return exitUsage
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	t.complain(err)
	return exitFailed
}

func (t *tool) run(ctx context.Context, args []string) error {
	flags := t.flags("cacheaside")
	args, err := t.parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		t.help()
		return nil
	case err != nil:
		return err
	case len(args) == 0:
		t.help()
		return usagef("a command is missing")
	case args[0] == "help":
		return t.helpOn(args[1:])
	}
	c, rest, err := find(args)
	if err != nil {
		return err
	}
	flags = t.flags(c.name)
	do := c.prepare(t, flags)
	rest, err = t.parse(flags, rest)
	if errors.Is(err, flag.ErrHelp) {
		t.helpOf(c)
		return nil
	}
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return err
	}
	return do(ctx, rest)
}

// parse returns the arguments after the flags. An argument that looks like a flag is an error,
// unless "--" precedes the arguments.
func (t *tool) parse(flags *flag.FlagSet, args []string) ([]string, error) {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, usagef("%s: %s", flags.Name(), withoutValue(err))
	}
	rest := flags.Args()
	if flags.Name() == "cacheaside" { // the flags of the command follow
		return rest, nil
	}
	if before := len(args) - len(rest); before > 0 && args[before-1] == "--" {
		return rest, nil
	}
	for _, arg := range rest {
		if strings.HasPrefix(arg, "-") && arg != "-" {
			return nil, usagef("%s: flags stand before the arguments; where an argument begins with \"-\", write -- "+
				"before the first", flags.Name())
		}
	}
	return rest, nil
}

// withoutValue returns the error of package flag without the value of the flag, which may be
// private.
func withoutValue(err error) string {
	text := err.Error()
	if rest, ok := strings.CutPrefix(text, "invalid value "); ok {
		if i := strings.LastIndex(rest, " for flag "); i >= 0 {
			name, reason, _ := strings.Cut(rest[i+len(" for flag "):], ":")
			return "the value of " + strings.TrimSpace(name) + " cannot be read:" + reason
		}
		return "the value of a flag cannot be read"
	}
	return text
}
