package mysqlbinlog

import (
	"bytes"
	"net/netip"
	"slices"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/encoding/unicode/utf32"
)

// Text in the log has the character set of its column. For character sets that are not in this
// file, only ASCII is decoded, because all of them share it. A conversion table that differs from
// the server's in one character would leave a row in the cache forever, under a key that is never
// invalidated. MySQL's latin1 is cp1252, with control characters for the five bytes that cp1252
// does not define (https://dev.mysql.com/doc/refman/8.4/en/charset-we-sets.html). Browsers do the
// same.
var encodings = map[string]encoding.Encoding{
	"latin1":  charmap.Windows1252,
	"ucs2":    unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	"utf16":   unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	"utf16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
	"utf32":   utf32.UTF32(utf32.BigEndian, utf32.IgnoreBOM),
}

// utf8Charsets are the character sets whose bytes can be used as UTF-8.
var utf8Charsets = map[string]bool{"utf8mb4": true, "utf8mb3": true, "utf8": true, "ascii": true, "binary": true}

// notASCII are the character sets that do not encode ASCII as ASCII.
var notASCII = map[string]bool{"swe7": true, "ucs2": true, "utf16": true, "utf16le": true, "utf32": true}

// decoder returns the function that decodes text in a character set. That function returns false
// for bytes that it cannot decode.
func decoder(charset string) func([]byte) (string, bool) {
	switch e := encodings[charset]; {
	case utf8Charsets[charset]:
		return plain
	case e != nil:
		return func(b []byte) (string, bool) {
			text, err := e.NewDecoder().Bytes(b)
			return string(text), err == nil && !bytes.ContainsRune(text, utf8.RuneError)
		}
	case charset == "swe7": // has letters instead of some ASCII signs
		return none
	}
	return ascii
}

func plain(b []byte) (string, bool) { return string(b), true }

func none([]byte) (string, bool) { return "", false }

func ascii(b []byte) (string, bool) {
	if !isASCII(b) {
		return "", false
	}
	return string(b), true
}

func isASCII(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c >= utf8.RuneSelf })
}

// uuidText formats a UUID as the client shows it.
func uuidText(b []byte) (string, bool) {
	id, err := uuid.FromBytes(b)
	return id.String(), err == nil
}

// addressText formats an IP address. MariaDB's clients shorten some INET6 addresses in another
// way.
func addressText(b []byte) (string, bool) {
	a, ok := netip.AddrFromSlice(b)
	return a.String(), ok
}
