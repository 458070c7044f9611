package mysqlbinlog

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A table's text is in the character set of its column. Of those that are rarer than these only
// what is ASCII is understood, in which they agree: a table that differs in one place from the
// server's would leave the key of a row in the cache for ever.
var decoders = map[string]func([]byte) (string, bool){
	"latin1": latin1,
	"swe7":   none, // has letters in the place of some of ASCII's signs
	"ucs2":   utf16be, "utf16": utf16be, "utf16le": utf16le, "utf32": utf32be,
}

// asIs are the character sets whose bytes are those of UTF-8.
var asIs = map[string]bool{"utf8mb4": true, "utf8mb3": true, "utf8": true, "ascii": true, "binary": true}

// notASCII are those whose ASCII is no ASCII.
var notASCII = map[string]bool{"swe7": true, "ucs2": true, "utf16": true, "utf16le": true, "utf32": true}

// decoder returns what makes text of the bytes of a character set; it answers false for what it
// does not understand.
func decoder(charset string) func([]byte) (string, bool) {
	if asIs[charset] {
		return plain
	}
	if d := decoders[charset]; d != nil {
		return d
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

// latin1 of MySQL is cp1252, with the control characters of the same number for the five bytes that
// has no character for (https://dev.mysql.com/doc/refman/8.4/en/charset-we-sets.html).
func latin1(b []byte) (string, bool) {
	if isASCII(b) {
		return string(b), true
	}
	var s strings.Builder
	for _, c := range b {
		if c >= 0x80 && c < 0xa0 {
			s.WriteRune(cp1252[c-0x80])
		} else {
			s.WriteRune(rune(c))
		}
	}
	return s.String(), true
}

var cp1252 = [32]rune{
	'€', 0x81, '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', 0x8d, 'Ž', 0x8f,
	0x90, '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', 0x9d, 'ž', 'Ÿ',
}

func utf16be(b []byte) (string, bool) { return fromUTF16(b, binary.BigEndian.Uint16) }
func utf16le(b []byte) (string, bool) { return fromUTF16(b, binary.LittleEndian.Uint16) }

func fromUTF16(b []byte, unit func([]byte) uint16) (string, bool) {
	if len(b)%2 != 0 {
		return "", false
	}
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = unit(b[2*i:])
	}
	s := string(utf16.Decode(units))
	return s, !strings.ContainsRune(s, utf8.RuneError)
}

func utf32be(b []byte) (string, bool) {
	if len(b)%4 != 0 {
		return "", false
	}
	var s strings.Builder
	for ; len(b) > 0; b = b[4:] {
		r := rune(binary.BigEndian.Uint32(b))
		if !utf8.ValidRune(r) {
			return "", false
		}
		s.WriteRune(r)
	}
	return s.String(), true
}

// uuidText is a UUID as the client shows it.
func uuidText(b []byte) (string, bool) {
	if len(b) != 16 {
		return "", false
	}
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], true
}

// inet4Text and inet6Text are addresses as MariaDB's client shows them.
func inet4Text(b []byte) (string, bool) {
	a, ok := netip.AddrFromSlice(b)
	return a.String(), ok && a.Is4()
}

func inet6Text(b []byte) (string, bool) {
	if len(b) != 16 {
		return "", false
	}
	var words [8]uint16
	for i := range words {
		words[i] = binary.BigEndian.Uint16(b[2*i:])
	}
	from, to := 0, 0 // the longest run of zeros, the first of those; a single one, too
	for i := 0; i < 8; i++ {
		j := i
		for j < 8 && words[j] == 0 {
			j++
		}
		if j-i > to-from {
			from, to = i, j
		}
		i = j
	}
	group := func(s *strings.Builder, from, to int) {
		for i := from; i < to; i++ {
			if i > from {
				s.WriteByte(':')
			}
			s.WriteString(strconv.FormatUint(uint64(words[i]), 16))
		}
	}
	var s strings.Builder
	switch {
	case from == 0 && (to == 6 || to == 5 && words[5] == 0xffff): // of IPv4
		s.WriteString("::")
		if to == 5 {
			s.WriteString("ffff:")
		}
		s.WriteString(netip.AddrFrom4([4]byte(b[12:])).String())
	case from == to:
		group(&s, 0, 8)
	default:
		group(&s, 0, from)
		s.WriteString("::")
		group(&s, to, 8)
	}
	return s.String(), true
}
