package sqldb

import "strings"

// IsIdentifier reports whether s may be used as a name between backquotes, which MySQL, MariaDB
// and SQLite accept.
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

// IsTable reports whether s is an identifier, or two identifiers separated by a dot.
func IsTable(s string) bool {
	schema, table, qualified := strings.Cut(s, ".")
	return IsIdentifier(schema) && (!qualified || IsIdentifier(table))
}

// Quote returns a table, or schema.table, between backquotes.
func Quote(table string) string { return "`" + strings.ReplaceAll(table, ".", "`.`") + "`" }

// QuoteStandard is Quote with the quotation marks of the SQL standard, which PostgreSQL requires.
// The name is then case-sensitive.
func QuoteStandard(table string) string {
	return `"` + strings.ReplaceAll(table, ".", `"."`) + `"`
}

// OwnPostgres is QuoteStandard for a table of this library. Without a schema it is in the schema
// public, for any search_path of the session, so processes whose search_paths differ use one table.
func OwnPostgres(table string) string {
	if !strings.Contains(table, ".") {
		table = "public." + table
	}
	return QuoteStandard(table)
}
