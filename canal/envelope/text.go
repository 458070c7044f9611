package envelope

import (
	"fmt"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// valueOf returns the Value of v, or the unknown Value if ok is false.
func valueOf(v any, ok bool) event.Value {
	if !ok {
		return event.Value{}
	}
	made, _ := event.ValueOf(v) // with an error, made is the unknown Value
	return made
}

const maxDigits = 256 // the display width of a column is at most 255

// year returns the value of a YEAR. Clients show 0 as "0000" or "0", and a short YEAR in two
// digits.
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

// names returns the names of an ENUM or SET type, as listed in information_schema, where
// quotation marks within a name are doubled. It returns nil if the type lists no names.
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

// quoted reads a quoted name, in which quotation marks are doubled.
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
	dateLayout     = "2006-01-02"
	datetimeLayout = "2006-01-02 15:04:05"
)

// datetime formats a DATETIME or TIMESTAMP with that number of fraction digits. ok is false if
// MySQL cannot represent the time.
func datetime(t time.Time, digits int) (string, bool) {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return "", false
	}
	return t.Format(datetimeLayout) + fraction(t.Nanosecond(), digits), true
}

// clock formats a TIME, which may be negative or longer than a day.
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
