package envelope

import (
	"fmt"
	"math/big"
	"strconv"
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

// plain is a JSON number without an exponent, where a DECIMAL can have been written with one: Java
// does so below 0.000001 (java.math.BigDecimal.toString), and MySQL's has 30 digits after the point
// at most.
func plain(number string) string {
	digits, exponent, ok := strings.Cut(strings.ToLower(number), "e-")
	n, err := strconv.Atoi(exponent)
	if !ok || err != nil || n > 30 || len(number) > maxDigits {
		return number
	}
	_, fraction, _ := strings.Cut(digits, ".")
	exact, ok := new(big.Rat).SetString(number)
	if !ok {
		return number
	}
	return exact.FloatString(n + len(fraction))
}

// zeros is a number of a column that is ZEROFILL, of which width is how many digits it has. Each
// client gets a DECIMAL as a text, with the zeros. Of an integer some drivers make a number, so its
// text is not exact.
func zeros(s string, width int, decimal bool) event.Value {
	if decimal && strings.Contains(s, ".") {
		width++
	}
	s = strings.Repeat("0", max(min(width, maxDigits)-len(s), 0)) + s
	if decimal {
		return event.TextValue(s)
	}
	return event.Inexact(s)
}

const maxDigits = 256 // the display width of a column is 255 at most

// isDecimal reports whether a type, in lower case, is DECIMAL or one of its other names.
func isDecimal(columnType string) bool {
	return strings.HasPrefix(columnType, "dec") || strings.HasPrefix(columnType, "numeric") || strings.HasPrefix(columnType, "fixed")
}

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
