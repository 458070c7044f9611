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

// A table's text is in the character set of its column. Of those that are rarer than these only
// what is ASCII is understood, in which they agree: a table that differs in one place from the
// server's would leave the key of a row in the cache for ever. latin1 of MySQL is cp1252, with the
// control characters of the same number for the five bytes that has no character for
// (https://dev.mysql.com/doc/refman/8.4/en/charset-we-sets.html), as browsers have it.
var encodings = map[string]encoding.Encoding{
	"latin1":  charmap.Windows1252,
	"ucs2":    unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	"utf16":   unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	"utf16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
	"utf32":   utf32.UTF32(utf32.BigEndian, utf32.IgnoreBOM),
}

// asIs are the character sets whose bytes are those of UTF-8.
var asIs = map[string]bool{"utf8mb4": true, "utf8mb3": true, "utf8": true, "ascii": true, "binary": true}

// notASCII are those whose ASCII is no ASCII.
var notASCII = map[string]bool{"swe7": true, "ucs2": true, "utf16": true, "utf16le": true, "utf32": true}

// decoder returns the function that makes text of the bytes of a character set. Its result is false
// for bytes that it does not understand.
func decoder(charset string) func([]byte) (string, bool) {
	switch e := encodings[charset]; {
	case asIs[charset]:
		return plain
	case e != nil:
		return func(b []byte) (string, bool) {
			text, err := e.NewDecoder().Bytes(b)
			return string(text), err == nil && !bytes.ContainsRune(text, utf8.RuneError)
		}
	case charset == "swe7": // has letters in the place of some of ASCII's signs
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

// uuidText returns a UUID as the client shows it.
func uuidText(b []byte) (string, bool) {
	id, err := uuid.FromBytes(b)
	return id.String(), err == nil
}

// addressText returns an IP address. Clients of MariaDB leave out other zeros of some of INET6.
func addressText(b []byte) (string, bool) {
	a, ok := netip.AddrFromSlice(b)
	return a.String(), ok
}
