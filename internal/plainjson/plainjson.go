// Package plainjson writes JSON for readers that do not take all characters.
package plainjson

import (
	"fmt"
	"strings"
	"unicode/utf16"
)

// Escape returns JSON with escapes for the runes that are not plain. Those are only in its strings.
func Escape(json []byte, plain func(rune) bool) string {
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
