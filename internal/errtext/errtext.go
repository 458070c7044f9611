// Package errtext removes repeated package names from error texts. The text of each exported error
// begins with the name of its package, because it may be shown alone. If the package wraps such an
// error with fmt.Errorf, the name occurs twice.
package errtext

import (
	"fmt"
	"strings"
)

// Errorf is fmt.Errorf for a format that begins with the name of a package, such as "lock: ". It
// applies Once to the text.
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
