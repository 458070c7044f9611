package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ask prints about, and returns nil only if --yes was given or the user confirms.
func (t *tool) ask(ctx context.Context, about string) error {
	for line := range strings.Lines(about) {
		fmt.Fprintln(t.stderr, escape(strings.TrimRight(line, "\n")))
	}
	if t.yes {
		return nil
	}
	if !isTerminal(t.stdin) {
		return usagef("nothing was changed: standard input is not a terminal, so a confirmation is impossible; give " +
			"--yes")
	}
	fmt.Fprint(t.stderr, "Continue? [y/N] ")
	answer := make(chan string, 1)
	go func() { answer <- readAnswer(t.stdin) }() // not awaited if ctx ends, because the program ends then
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return errDeclined
	case <-ctx.Done():
		return errDeclined
	}
}

// readAnswer reads a line of at most 64 bytes.
func readAnswer(r io.Reader) string {
	var line []byte
	var b [1]byte
	for len(line) < 64 {
		n, err := r.Read(b[:])
		if n == 1 && b[0] == '\n' {
			return strings.ToLower(strings.TrimSpace(string(line)))
		}
		line = append(line, b[:n]...)
		if err != nil {
			return "" // an incomplete line does not count
		}
	}
	return ""
}

// isTerminal reports whether r is a character device. That includes /dev/null, which returns no
// line.
func isTerminal(r io.Reader) bool {
	f, ok := r.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

// askable registers --yes.
func (t *tool) askable(flags *flag.FlagSet) {
	flags.BoolVar(&t.yes, "yes", t.yes, "do not ask")
}
