package rowkeys

import (
	"regexp"
	"strings"
)

// reading are the first words of statements that change no row, and of definitions.
var reading = map[string]bool{
	"SELECT": true, "SHOW": true, "SET": true, "SAVEPOINT": true, "ROLLBACK": true, "RELEASE": true, "BEGIN": true,
	"START": true, "COMMIT": true, "DESCRIBE": true, "DESC": true, "USE": true, "VACUUM": true,
	"CREATE": true, "ALTER": true, "DROP": true, "COMMENT": true, "GRANT": true, "REVOKE": true, "LOCK": true,
	"UNLOCK": true, "PRAGMA": true, "LISTEN": true, "NOTIFY": true, "TABLE": true, "VALUES": true, "": true,
}

var (
	// leading is white space, parentheses and comments before the first word. Comments elsewhere
	// are not removed, because their marks can be in a text.
	leading  = regexp.MustCompile(`^(?s:[\s(]+|--[^\n]*|#[^\n]*|/\*[^!].*?\*/)+`)
	changing = regexp.MustCompile(`(?is)\bINSERT\s+INTO\b|\bUPDATE\s.*\sSET\s|\bDELETE\s+FROM\b|\bMERGE\s+INTO\b|` +
		`\bREPLACE\s+INTO\b`)
)

// ChangesRows reports whether SQL may change rows. It returns false for SELECT, even if that calls
// a function that changes rows, and for definitions (CREATE, ALTER, DROP). If in doubt, as with a
// semicolon in a text or MySQL's executable comments, it returns true.
func ChangesRows(sql string) bool {
	text := sql[len(leading.FindString(sql)):]
	if first, rest, ok := strings.Cut(text, ";"); ok && strings.TrimSpace(rest) != "" {
		return ChangesRows(first) || ChangesRows(rest)
	}
	if strings.HasPrefix(text, "/*") {
		return true
	}
	end := strings.IndexFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
	})
	if end < 0 {
		end = len(text)
	}
	switch word := strings.ToUpper(text[:end]); word {
	case "WITH", "EXPLAIN", "ANALYZE": // MariaDB's ANALYZE executes a statement
		return changing.MatchString(text)
	default:
		return !reading[word]
	}
}
