package wording

import (
	"fmt"
	"strings"
	"unicode/utf16"
)

// EscapeJSON returns json with escapes for all runes for which plain returns false. Such runes must
// occur only in strings.
func EscapeJSON(json []byte, plain func(rune) bool) string {
	var s strings.Builder
	s.Grow(len(json))
	for _, r := range string(json) {
		switch {
		case plain(r):
			s.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&s, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&s, `\u%04x`, r)
		}
	}
	return s.String()
}
