package pglogical

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
)

const encodingUTF8 = "UTF8"

// charmaps has the encodings of databases in which each character is one byte:
// https://www.postgresql.org/docs/current/multibyte.html.
var charmaps = map[string]*charmap.Charmap{
	"LATIN1": charmap.ISO8859_1, "LATIN2": charmap.ISO8859_2, "LATIN3": charmap.ISO8859_3, "LATIN4": charmap.ISO8859_4,
	"LATIN5": charmap.ISO8859_9, "LATIN6": charmap.ISO8859_10, "LATIN7": charmap.ISO8859_13,
	"LATIN8": charmap.ISO8859_14,
	"LATIN9": charmap.ISO8859_15, "LATIN10": charmap.ISO8859_16,
	"ISO_8859_5": charmap.ISO8859_5, "ISO_8859_6": charmap.ISO8859_6, "ISO_8859_7": charmap.ISO8859_7,
	"ISO_8859_8": charmap.ISO8859_8,
	"WIN866":     charmap.CodePage866, "WIN874": charmap.Windows874, "WIN1250": charmap.Windows1250,
	"WIN1251": charmap.Windows1251,
	"WIN1252": charmap.Windows1252, "WIN1253": charmap.Windows1253, "WIN1254": charmap.Windows1254,
	"WIN1255": charmap.Windows1255,
	"WIN1256": charmap.Windows1256, "WIN1257": charmap.Windows1257, "WIN1258": charmap.Windows1258,
	"KOI8R": charmap.KOI8R, "KOI8U": charmap.KOI8U,
}

// replicationEncoding returns the encoding in which to read the log of a database with this
// encoding. If the server had to convert the texts, one text that it cannot convert would end the
// log for all tables: SQL_ASCII may contain any bytes, and WIN1252 has bytes without a character.
// The server still converts from encodings with several bytes for a character. They are checked
// when they are stored.
func replicationEncoding(database string) string {
	if database == "SQL_ASCII" || charmaps[database] != nil {
		return database
	}
	return encodingUTF8
}

// A textDecoder converts texts of the log to UTF-8.
type textDecoder struct{ charmap *charmap.Charmap }

func newTextDecoder(encoding string) textDecoder { return textDecoder{charmaps[encoding]} }

// decode returns a text in UTF-8. ok is false if it contains a byte that is not a character. Such a
// text is not known: the server would return an error to a program that selects it.
func (t textDecoder) decode(text []byte) (decoded []byte, ok bool) {
	if t.charmap == nil {
		return text, utf8.Valid(text)
	}
	if isASCII(text) {
		return text, true
	}
	decoded, err := t.charmap.NewDecoder().Bytes(text)
	return decoded, err == nil && !bytes.ContainsRune(decoded, utf8.RuneError)
}

// name returns the name of a table or a column in UTF-8. An unreadable byte becomes U+FFFD: no
// Binding has such a name.
func (t textDecoder) name(text string) string {
	decoded, ok := t.decode([]byte(text))
	if !ok {
		return strings.ToValidUTF8(string(decoded), string(utf8.RuneError))
	}
	return string(decoded)
}

func isASCII(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
