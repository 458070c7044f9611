// Package sqlname has what names of tables and columns may be, which are no parameters of a
// statement.
package sqlname

import "strings"

// IsIdentifier tells whether s may stand between backquotes, which MySQL, MariaDB and SQLite know.
func IsIdentifier(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		default:
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// IsTable tells whether s is an identifier, or two with a '.' between them.
func IsTable(s string) bool {
	schema, table, qualified := strings.Cut(s, ".")
	return IsIdentifier(schema) && (!qualified || IsIdentifier(table))
}

// Quote returns a table, or schema.table, between backquotes.
func Quote(table string) string { return "`" + strings.ReplaceAll(table, ".", "`.`") + "`" }
