package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// wrap breaks text into lines of at most width columns.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// thousands formats 95607 as 95,607.
func thousands[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func percent(n, total int64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(cmp.Or(total, 1)))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// micros formats a latency with about three digits.
func micros(d time.Duration) string {
	switch us := float64(d) / float64(time.Microsecond); {
	case us < 10:
		return fmt.Sprintf("%.1f µs", us)
	case us < 1000:
		return fmt.Sprintf("%.0f µs", us)
	default:
		return fmt.Sprintf("%.1f ms", us/1000)
	}
}
