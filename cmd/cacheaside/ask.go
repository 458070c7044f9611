package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ask says what is about to be done, and goes on only if --yes was given, or somebody answers so.
func (t *tool) ask(ctx context.Context, about string) error {
	for line := range strings.Lines(about) {
		fmt.Fprintln(t.stderr, escape(strings.TrimRight(line, "\n")))
	}
	if t.yes {
		return nil
	}
	if !isTerminal(t.stdin) {
		return usagef("nothing was changed: standard input is not a terminal, so there is nobody to ask; give --yes")
	}
	fmt.Fprint(t.stderr, "Go on? [y/N] ")
	answer := make(chan string, 1)
	go func() { answer <- readAnswer(t.stdin) }() // left behind if ctx ends; then the program ends, too
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

// readAnswer is a line, of what has a sensible length.
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
			return "" // a line that has not ended is no answer
		}
	}
	return ""
}

// isTerminal also takes /dev/null for one, which answers nothing.
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
