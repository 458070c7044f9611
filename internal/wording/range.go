package wording

import (
	"fmt"
	"time"
)

// Range returns an error that names the field if d is not between lo and hi, both inclusive.
func Range(field string, d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return fmt.Errorf("%s %s: from %s to %s", field, inWords(d), inWords(lo), inWords(hi))
	}
	return nil
}

// inWords formats a duration for people: "10 years", "1m30s".
func inWords(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{365 * day, "year"}, {day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		switch n := d / unit.length; {
		case n < 1 || d%unit.length != 0:
		case n == 1:
			return "1 " + unit.name
		default:
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return d.String()
}
