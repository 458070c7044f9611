// Package wording writes texts for people that several packages share: errors with the name of
// their package once, durations in words, and JSON without characters that a terminal may hide.
package wording

import (
	"fmt"
	"strings"
)

// Errorf is fmt.Errorf for a format that begins with the name of a package, such as "lock: ". The
// text of each exported error begins with such a name, because it may be shown alone. So if a
// package wraps its own error, the name would occur twice: Errorf applies Once to the text.
func Errorf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if text := Once(err.Error()); text != err.Error() {
		return &once{text, err}
	}
	return err
}

// Once returns text with only one occurrence of the name that it begins with. It removes the
// others that stand at the beginning of a wrapped text: "lock: a: lock: b" is "lock: a: b".
func Once(text string) string {
	name, _, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return strings.ReplaceAll(text, ": "+name+": ", ": ")
}

// once is an error with another text.
type once struct {
	text string
	err  error
}

func (o *once) Error() string { return o.text }

func (o *once) Unwrap() error { return o.err }
