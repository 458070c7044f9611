package ddl

import (
	"strings"
	"unicode/utf8"
)

// kind is the kind of a token.
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
	text string // without the quotes; escaped and doubled characters are unchanged
}

// is reports whether the token is this keyword, given in upper case.
func (t token) is(keyword string) bool {
	return t.kind == word && len(t.text) == len(keyword) && upper(t.text) == keyword
}

// upper returns a word in upper case, or "" if it is longer than any keyword.
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

// lexer splits a statement into tokens, which are substrings of it:
// https://dev.mysql.com/doc/refman/8.4/en/language-structure.html.
type lexer struct {
	text    string
	at      int
	open    int  // number of open executable comments
	bad     bool // not a valid statement; the rest of it is not read
	escaped bool // a quotation mark was escaped with \
}

func (l *lexer) fail() token {
	l.bad, l.at = true, len(l.text)
	return token{}
}

// scan returns the next token.
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
		case c < ' ' || c == '\\' || c == 0x7f: // only allowed within quotes
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
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' ||
		c >= utf8.RuneSelf
}

// executable returns the length of the prefix that makes a server execute a comment: /*! or /*M!,
// with the version if there is one, as in /*!40101. It returns 0 for other comments. If a server
// does not execute such a comment because of the version, it logs an ordinary comment instead.
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

// quote reads the quoted text that starts here.
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

// ascii reports whether the byte at i is a character of its own. In GBK, Big5 or Shift JIS it may
// be the second byte of a character.
func (l *lexer) ascii(i int) bool {
	if i == 0 || l.text[i-1] < utf8.RuneSelf {
		return true
	}
	r, n := utf8.DecodeLastRuneInString(l.text[max(0, i-utf8.UTFMax):i])
	return r != utf8.RuneError || n > 1
}
