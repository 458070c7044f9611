package rowkeys

import (
	"regexp"
	"strings"
)

// reading are the first words of statements that change no row, and of definitions.
var reading = map[string]bool{
	"SELECT": true, "SHOW": true, "SET": true, "SAVEPOINT": true, "ROLLBACK": true, "RELEASE": true, "BEGIN": true,
	"START": true, "COMMIT": true, "DESCRIBE": true, "DESC": true, "USE": true, "ANALYZE": true, "VACUUM": true,
	"CREATE": true, "ALTER": true, "DROP": true, "COMMENT": true, "GRANT": true, "REVOKE": true, "LOCK": true,
	"UNLOCK": true, "PRAGMA": true, "LISTEN": true, "NOTIFY": true, "TABLE": true, "VALUES": true, "": true,
}

var (
	comments = regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`)
	changing = regexp.MustCompile(`(?is)\bINSERT\s+INTO\b|\bUPDATE\s.*\sSET\s|\bDELETE\s+FROM\b|\bMERGE\s+INTO\b|` +
		`\bREPLACE\s+INTO\b`)
)

// ChangesRows reports whether SQL may change rows. It returns false for SELECT, even if that calls
// a function that changes rows, and for definitions (CREATE, ALTER, DROP).
func ChangesRows(sql string) bool {
	text := strings.TrimLeft(comments.ReplaceAllString(sql, " "), " \t\r\n(")
	if first, rest, ok := strings.Cut(text, ";"); ok && strings.TrimSpace(rest) != "" {
		return ChangesRows(first) || ChangesRows(rest)
	}
	end := strings.IndexFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	})
	if end < 0 {
		end = len(text)
	}
	switch word := strings.ToUpper(text[:end]); {
	case word == "WITH" || word == "EXPLAIN":
		return changing.MatchString(text)
	default:
		return !reading[word]
	}
}
