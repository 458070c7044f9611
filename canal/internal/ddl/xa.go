package ddl

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// maxXID is how long gtrid and bqual may be.
const maxXID = 64

// xa reads what follows XA: https://dev.mysql.com/doc/refman/8.4/en/xa-statements.html.
func (r *reader) xa() bool {
	switch {
	case r.keyword("START", "BEGIN", "END", "PREPARE"):
		r.effect.Control = XA
	case r.keyword("COMMIT"):
		r.effect.Control = XACommit
	case r.keyword("ROLLBACK"):
		r.effect.Control = XARollback
	default:
		return r.keyword("RECOVER") && r.rest()
	}
	gtrid, ok := r.xid()
	bqual, format := []byte{}, uint64(1)
	if ok && r.accept(',') {
		bqual, ok = r.xid()
	}
	if ok && r.accept(',') {
		format, ok = r.number()
	}
	r.effect.XID = fmt.Sprintf("X'%x',X'%x',%d", gtrid, bqual, format)
	return ok && r.rest()
}

// xid reads a string, or a hexadecimal or binary literal.
func (r *reader) xid() ([]byte, bool) {
	t := r.token
	r.next()
	var b []byte
	var err error
	switch {
	case t.kind == single || t.kind == double:
		b = r.unescape(t)
	case t.kind != word || len(t.text) > 2+8*maxXID:
		return nil, false
	case (t.is("X") || t.is("B")) && r.token.kind == single:
		b, err = literal(upper(t.text), r.token.text)
		r.next()
	case len(t.text) > 2 && t.text[0] == '0' && (t.text[1] == 'x' || t.text[1] == 'b'):
		b, err = literal(strings.ToUpper(t.text[1:2]), t.text[2:])
	default:
		return nil, false
	}
	return b, err == nil && len(b) <= maxXID
}

// number reads a number, in decimal or hexadecimal digits.
func (r *reader) number() (uint64, bool) {
	digits, base := r.token.text, 10
	if after, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, base = after, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	ok := err == nil && r.token.kind == word
	r.next()
	return n, ok
}

// literal is the bytes of a literal of base X or B.
func literal(base, digits string) ([]byte, error) {
	if base == "B" {
		hexadecimal := make([]byte, 0, 2*maxXID)
		for digits != "" && len(hexadecimal) <= 2*maxXID {
			n := (len(digits)-1)%4 + 1
			nibble, err := strconv.ParseUint(digits[:n], 2, 4)
			if err != nil {
				return nil, err
			}
			hexadecimal = strconv.AppendUint(hexadecimal, nibble, 16)
			digits = digits[n:]
		}
		digits = string(hexadecimal)
	}
	return hex.DecodeString(strings.Repeat("0", len(digits)&1) + digits)
}

// unescape is what a string says: https://dev.mysql.com/doc/refman/8.4/en/string-literals.html.
func (r *reader) unescape(t token) []byte {
	quote := byte('\'')
	if t.kind == double {
		quote = '"'
	}
	var b []byte
	for i := 0; i < len(t.text) && len(b) <= maxXID; i++ {
		c := t.text[i]
		switch {
		case c == quote: // doubled
			i++
		case c == '\\' && r.escapes && i+1 < len(t.text):
			i++
			c = t.text[i]
			if n := strings.IndexByte("0btnrZ", c); n >= 0 {
				c = "\x00\b\t\n\r\x1a"[n]
			} else if c == '%' || c == '_' { // it stands for a character of a pattern, with the backslash
				b = append(b, '\\')
			}
		}
		b = append(b, c)
	}
	return b
}
