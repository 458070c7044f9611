package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/internal/wording"
)

// show prints v as JSON, or as a table. table is called with a function that adds a row.
func (t *tool) show(v any, table func(row func(cells ...any))) error {
	if t.json {
		return t.showJSON(v)
	}
	var all bytes.Buffer
	w := tabwriter.NewWriter(&all, 0, 8, 2, ' ', 0)
	table(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	})
	_ = w.Flush() // into memory
	for line := range strings.Lines(all.String()) {
		if _, err := fmt.Fprintln(t.stdout, strings.TrimRight(line, " \n")); err != nil {
			return written(err)
		}
	}
	return nil
}

func (t *tool) showJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = io.WriteString(t.stdout, ascii(b)+"\n")
	return written(err)
}

func written(err error) error {
	if err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

func (t *tool) table() *tabwriter.Writer { return tabwriter.NewWriter(t.stdout, 0, 8, 2, ' ', 0) }

// ascii escapes all characters of JSON that could control a terminal, such as control characters
// above ASCII and marks of direction.
func ascii(b []byte) string {
	return wording.EscapeJSON(b, func(r rune) bool { return r >= ' ' && r < 0x7F })
}

// quoted returns foreign text for a table: unchanged if it is plain, otherwise quoted as in Go.
func quoted(text string) string {
	if plain(text) && !strings.HasPrefix(text, `"`) && text != "" && strings.TrimSpace(text) == text {
		return text
	}
	return strconv.Quote(text)
}

// untrusted is foreign text. A table shows it quoted. JSON contains it unchanged, or quoted as in
// Go if it is not UTF-8.
type untrusted string

func (u untrusted) String() string { return quoted(string(u)) }

func (u untrusted) MarshalJSON() ([]byte, error) {
	if !utf8.ValidString(string(u)) {
		return json.Marshal(strconv.Quote(string(u)))
	}
	return json.Marshal(string(u))
}

func plain(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// escape returns a line of the tool that may contain foreign text, such as the error of a server,
// without control characters.
func escape(line string) string {
	if plain(line) {
		return line
	}
	q := strconv.Quote(line)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// keyHash returns a key's hash as errors and logs show it.
func keyHash(hash uint64) string { return fmt.Sprintf("key#%016x", hash) }

func groupHash(hash uint64) string { return fmt.Sprintf("group#%016x", hash) }

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// moment returns a time, and its distance from now.
func moment(t, now time.Time) string {
	return t.UTC().Format(timeLayout) + " (" + from(t.Sub(now)) + ")"
}

// from returns a distance in time in words.
func from(d time.Duration) string {
	if d < 0 {
		return short(-d) + " ago"
	}
	return "in " + short(d)
}

// short returns a rounded duration.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.String()
}

// stamp returns a time for JSON, or nil if there is none.
func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(timeLayout)
	return &s
}

func count(n int, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}

// complain prints an error, with the name of the tool before each line.
func (t *tool) complain(err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(t.stderr, "cacheaside: "+escape(strings.TrimRight(line, "\n")))
	}
}
