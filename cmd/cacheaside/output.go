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

	"github.com/cacheaside/cacheaside/internal/plainjson"
)

// show prints v as JSON, or as a table for people, which is called with what takes its rows.
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

// ascii is JSON in which nothing is left that steers a terminal: control characters above ASCII,
// marks of direction.
func ascii(b []byte) string {
	return plainjson.Escape(b, func(r rune) bool { return r >= ' ' && r < 0x7F })
}

// quoted is text of others for people: as it is where it is plain, else as Go writes it.
func quoted(text string) string {
	if plain(text) && !strings.HasPrefix(text, `"`) && text != "" && strings.TrimSpace(text) == text {
		return text
	}
	return strconv.Quote(text)
}

// untrusted is text of others: in a table quoted, in JSON as it is, or, where it is not UTF-8 and
// so cannot be that, as Go quotes it.
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

// escape is a line of our own in which text of others may stand, as a server's error.
func escape(line string) string {
	if plain(line) {
		return line
	}
	q := strconv.Quote(line)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// keyHash is a key as errors and logs show it.
func keyHash(hash uint64) string { return fmt.Sprintf("key#%016x", hash) }

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// moment is a time, and how far it is from now.
func moment(at, now time.Time) string {
	return at.UTC().Format(timeLayout) + " (" + from(at.Sub(now)) + ")"
}

// from is a distance in time in words.
func from(d time.Duration) string {
	if d < 0 {
		return short(-d) + " ago"
	}
	return "in " + short(d)
}

// short is a duration for people.
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

// stamp is a time in JSON; nil: there is none.
func stamp(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	s := at.UTC().Format(timeLayout)
	return &s
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// complain prints an error, each of its lines as one of the tool.
func (t *tool) complain(err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(t.stderr, "cacheaside: "+escape(strings.TrimRight(line, "\n")))
	}
}
