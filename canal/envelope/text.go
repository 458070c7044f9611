package envelope

import (
	"fmt"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// valueOf is a value, if it could be read.
func valueOf(v any, ok bool) event.Value {
	if !ok {
		return event.Value{}
	}
	made, _ := event.ValueOf(v) // an error goes with a value that is not known
	return made
}

const maxDigits = 256 // the display width of a column is 255 at most

// year is a YEAR, which clients show as "0000" or "0" if it is 0, and in two digits if it is short.
func year(n int64, short bool) event.Value {
	switch {
	case n < 0 || n > 9999:
		return event.Value{}
	case short:
		return event.Inexact(fmt.Sprintf("%02d", n%100))
	case n == 0:
		return event.Inexact("0000")
	}
	return valueOf(n, true)
}

// names are those that the type of an ENUM or SET column lists, as information_schema has it; of a
// quotation mark in a name it has two. nil: it lists none.
func names(columnType string) []string {
	_, list, _ := strings.Cut(columnType, "(")
	var all []string
	for {
		name, rest, ok := quoted(strings.TrimLeft(list, " "), '\'')
		if !ok {
			return nil
		}
		all, list = append(all, name), strings.TrimLeft(rest, " ")
		if strings.HasPrefix(list, ")") {
			return all
		}
		if !strings.HasPrefix(list, ",") {
			return nil
		}
		list = list[1:]
	}
}

// quoted reads a name in quotation marks, of which it has those doubled that are part of it.
func quoted(s string, mark byte) (name, rest string, ok bool) {
	if s == "" || s[0] != mark {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] == mark {
			if i+1 == len(s) || s[i+1] != mark {
				return b.String(), s[i+1:], true
			}
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

const (
	dateLayout  = "2006-01-02"
	stampLayout = "2006-01-02 15:04:05"
)

// stamp is a DATETIME or TIMESTAMP of so many fraction digits. ok is false if it is none that MySQL
// can have.
func stamp(t time.Time, digits int) (string, bool) {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return "", false
	}
	return t.Format(stampLayout) + fraction(t.Nanosecond(), digits), true
}

// clock is a TIME, which may be negative, and longer than a day.
func clock(d time.Duration, digits int) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	s := int64(d / time.Second)
	return fmt.Sprintf("%s%02d:%02d:%02d", sign, s/3600, s/60%60, s%60) + fraction(int(d%time.Second), digits)
}

func fraction(nanoseconds, digits int) string {
	if digits <= 0 {
		return ""
	}
	return "." + fmt.Sprintf("%09d", nanoseconds)[:min(digits, 9)]
}
