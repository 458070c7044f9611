package mysqlbinlog

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// inet4Text returns an address as MariaDB's client shows it.
func inet4Text(b []byte) (string, bool) {
	a, ok := netip.AddrFromSlice(b)
	return a.String(), ok && a.Is4()
}

// inet6Text returns an address as MariaDB's client shows it: unlike netip, with "::" for a single
// zero, too, and with IPv4 in more addresses.
func inet6Text(b []byte) (string, bool) {
	if len(b) != 16 {
		return "", false
	}
	var words [8]string
	for i := range words {
		words[i] = strconv.FormatUint(uint64(binary.BigEndian.Uint16(b[2*i:])), 16)
	}
	from, to := 0, 0 // the longest run of zeros, the first of those
	for i := range words {
		j := i
		for j < 8 && words[j] == "0" {
			j++
		}
		if j-i > to-from {
			from, to = i, j
		}
	}
	v4 := netip.AddrFrom4([4]byte(b[12:])).String()
	switch {
	case from == 0 && to == 6:
		return "::" + v4, true
	case from == 0 && to == 5 && words[5] == "ffff":
		return "::ffff:" + v4, true
	case from == to:
		return strings.Join(words[:], ":"), true
	}
	return strings.Join(words[:from], ":") + "::" + strings.Join(words[to:], ":"), true
}
