package ddl

import (
	"strings"
	"unicode/utf8"
)

// kind is that of a token.
type kind uint8

const (
	end    kind = iota
	word        // a keyword, a name without quotes, or a number
	quoted      // a name in backticks
	double      // "…": a name with the SQL mode ANSI_QUOTES, else a string
	single      // '…'
	sign        // one character of punctuation
)

type token struct {
	kind kind
	text string // without the quotes, but with what is escaped or doubled as it stands
}

// is tells whether it is this keyword, in upper case.
func (t token) is(keyword string) bool {
	return t.kind == word && len(t.text) == len(keyword) && upper(t.text) == keyword
}

// upper is a word as keywords are written here. A word that is too long for any is "".
func upper(word string) string {
	if len(word) > 32 {
		return ""
	}
	b := [32]byte{}
	for i := range len(word) {
		c := word[i]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		b[i] = c
	}
	return string(b[:len(word)])
}

// lexer cuts a statement into tokens, each of them a part of it:
// https://dev.mysql.com/doc/refman/8.4/en/language-structure.html.
type lexer struct {
	text    string
	at      int
	open    int  // executable comments that are not closed yet
	bad     bool // it is no statement: what is left of it is not read
	escaped bool // there was a quote that \ escapes
}

func (l *lexer) fail() token {
	l.bad, l.at = true, len(l.text)
	return token{}
}

// scan is the next token.
func (l *lexer) scan() token {
	for l.at < len(l.text) {
		rest := l.text[l.at:]
		c := rest[0]
		switch {
		case c == ' ' || c >= '\t' && c <= '\r':
			l.at++
		case c == '#', strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' ' || rest[2] == 0x7f):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest) - 1
			}
			l.at += n + 1
		case executable(rest) > 0:
			l.at += executable(rest)
			l.open++
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return l.fail()
			}
			l.at += n + 4
		case l.open > 0 && strings.HasPrefix(rest, "*/"):
			l.at += 2
			l.open--
		case c == '`':
			return l.quote(c, quoted)
		case c == '"':
			return l.quote(c, double)
		case c == '\'':
			return l.quote(c, single)
		case inWord(c):
			n := 1
			for n < len(rest) && inWord(rest[n]) {
				n++
			}
			l.at += n
			return token{word, rest[:n]}
		case c < ' ' || c == '\\' || c == 0x7f: // in no statement but within quotes
			return l.fail()
		default:
			l.at++
			return token{sign, rest[:1]}
		}
	}
	if l.open > 0 {
		return l.fail()
	}
	return token{}
}

func inWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= utf8.RuneSelf
}

// executable is how long the beginning of a comment that the server executes is, with its version,
// as in /*!40101 and /*M!100100. A server makes of those that it does not execute other comments as
// it logs them.
//
// https://dev.mysql.com/doc/refman/8.4/en/comments.html,
// https://mariadb.com/docs/server/reference/sql-structure/sql-language-structure/comment-syntax
func executable(s string) int {
	n := 0
	switch {
	case strings.HasPrefix(s, "/*!"):
		n = 3
	case strings.HasPrefix(s, "/*M!"):
		n = 4
	}
	if n == 0 {
		return 0
	}
	digits := 0
	for digits < 6 && n+digits < len(s) && s[n+digits] >= '0' && s[n+digits] <= '9' {
		digits++
	}
	if digits >= 5 {
		n += digits
	}
	return n
}

// quote is what stands in quotes that open here.
func (l *lexer) quote(q byte, k kind) token {
	start := l.at + 1
	if !l.ascii(l.at) {
		return l.fail()
	}
	for i := start; i < len(l.text); i++ {
		c := l.text[i]
		if (c == '\\' || c == '`') && !l.ascii(i) {
			return l.fail()
		}
		if c == '\\' && k != quoted {
			i++
			l.escaped = l.escaped || i < len(l.text) && l.text[i] == q
			continue
		}
		if c != q {
			continue
		}
		if i+1 < len(l.text) && l.text[i+1] == q {
			i++
			continue
		}
		l.at = i + 1
		return token{k, l.text[start:i]}
	}
	return l.fail()
}

// ascii tells whether the byte at i is a character of its own. It may be the second one of a
// character of GBK, Big5 or Shift JIS.
func (l *lexer) ascii(i int) bool {
	if i == 0 || l.text[i-1] < utf8.RuneSelf {
		return true
	}
	r, n := utf8.DecodeLastRuneInString(l.text[max(0, i-utf8.UTFMax):i])
	return r != utf8.RuneError || n > 1
}
