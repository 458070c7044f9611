package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// commands returns all commands, in the order of the help text.
func commands() []command {
	return []command{
		getCommand, invalidateCommand, loaderLsCommand, tailCommand,
		filterInfoCommand, filterCheckCommand, filterRebuildCommand,
		outboxLsCommand, outboxRetryCommand,
		binlogStatusCommand, slotStatusCommand,
		lockLsCommand, lockShowCommand, lockBreakCommand,
		schemaPostgresCommand, schemaMySQLCommand, schemaSQLiteCommand,
	}
}

// find returns the command that args begin with, and the other arguments.
func find(args []string) (c command, rest []string, err error) {
	group := false
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return c, args[len(words):], nil
		}
		group = group || words[0] == args[0]
	}
	if !group {
		return c, nil, unknown(args[0])
	}
	if len(args) > 1 && keys.ValidName(args[1]) && args[1][0] != '-' {
		return c, nil, unknown(args[0] + " " + args[1])
	}
	return c, nil, usagef("%s: one of these must follow: %s", args[0], strings.Join(within(args[0]), ", "))
}

// within returns the second words of the commands of a group.
func within(group string) (words []string) {
	for _, c := range commands() {
		if rest, ok := strings.CutPrefix(c.name, group+" "); ok {
			words = append(words, rest)
		}
	}
	return words
}

// unknown returns an error that suggests the nearest command. It does not repeat a word that may
// be private, such as a URL with a password.
func unknown(name string) error {
	if len(name) > 24 || !keys.ValidName(strings.ReplaceAll(name, " ", "")) {
		return usagef("this is not a command; see \"cacheaside help\"")
	}
	best, distance := "", 2+len(name)/2
	for _, c := range commands() {
		candidates := []string{c.name}
		if group, _, two := strings.Cut(c.name, " "); two {
			candidates = append(candidates, group)
		}
		for _, candidate := range candidates {
			if d := edits(name, candidate); d < distance {
				best, distance = candidate, d
			}
		}
	}
	if best == "" {
		return usagef("there is no command %q; see \"cacheaside help\"", name)
	}
	return usagef("there is no command %q; did you mean %q?", name, best)
}

// edits returns the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			before, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, before+cost)
		}
	}
	return row[len(b)]
}

func (t *tool) help() {
	w := t.table()
	fmt.Fprint(w, "Cacheaside shows what the library keeps in Redis and in the database, and repairs it.\n\nusage: "+
		"cacheaside [flags] COMMAND [flags] [arguments]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %s\t%s\n", strings.TrimSpace(c.name+" "+c.args), c.short)
	}
	fmt.Fprint(w, "  help COMMAND\tshow the help of a command\n\nflags of all commands:\n")
	listFlags(w, t.flags("cacheaside"))
	fmt.Fprint(w, environment)
	_ = w.Flush()
}

func (t *tool) helpOn(words []string) error {
	if len(words) == 0 {
		t.help()
		return nil
	}
	if group := within(words[0]); len(words) == 1 && len(group) > 0 {
		for _, second := range group {
			c, _, _ := find([]string{words[0], second})
			t.helpOf(c)
			fmt.Fprintln(t.stdout)
		}
		return nil
	}
	c, _, err := find(words)
	if err != nil {
		return err
	}
	t.helpOf(c)
	return nil
}

func (t *tool) helpOf(c command) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	c.prepare(t, flags)
	w := t.table()
	fmt.Fprintf(w, "usage: cacheaside %s\n\n%s\n", strings.TrimSpace(c.name+" [flags] "+c.args), c.long)
	if hasFlags(flags) {
		fmt.Fprint(w, "\nflags:\n")
		listFlags(w, flags)
	}
	fmt.Fprintf(w, "\nexample:\n\n  cacheaside %s\n\nFlags of all commands: cacheaside help.\n", c.example)
	_ = w.Flush()
}

func hasFlags(flags *flag.FlagSet) (some bool) {
	flags.VisitAll(func(*flag.Flag) { some = true })
	return some
}
