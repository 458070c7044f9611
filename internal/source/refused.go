package source

import (
	"regexp"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// refusesKey reports whether err, the error of a load, is the fault of the key: the database works,
// but it refuses this value. No driver is needed for that. It is
//
//   - a data exception of PostgreSQL (SQLSTATE class 22), by pgx or lib/pq;
//   - a refusal of a value by MySQL or MariaDB, by go-sql-driver/mysql;
//   - a type mismatch of SQLite;
//   - a value that pgx or database/sql cannot encode, so that nothing was sent.
//
// It calls methods of err, which may panic.
func refusesKey(err error) bool {
	return strings.HasPrefix(sqldb.SQLState(err), "22") || anyText(err, isRefusal)
}

// anyText reports whether is accepts the text of an error in the tree of err. It does not use the
// texts of errors that contain several others, because these can be long.
func anyText(err error, is func(text string) bool) bool {
	var chain []error
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // this loop walks the tree
		case interface{ Unwrap() []error }:
			return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return anyText(err, is) })
		case interface{ Unwrap() error }:
			chain, err = append(chain, err), e.Unwrap()
		default:
			chain, err = append(chain, err), nil
		}
	}
	return slices.ContainsFunc(chain, func(err error) bool { return is(err.Error()) })
}

// isRefusal reports whether text is that of an error without a code in its type.
func isRefusal(text string) bool {
	for _, start := range []string{
		"failed to encode args[",            // pgx
		"sql: converting argument ",         // database/sql
		"datatype mismatch",                 // SQLite
		"SQL logic error: integer overflow", // SQLite
	} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	code := mysqlError.FindStringSubmatch(text)
	return code != nil && (strings.HasPrefix(code[2], "22") || slices.Contains(mysqlRefusals, code[1]))
}

// mysqlError matches the beginning of the text of an error of go-sql-driver/mysql.
var mysqlError = regexp.MustCompile(`^Error (\d+) \((\w{5})\): `)

// mysqlRefusals are the numbers of errors that MySQL and MariaDB return for a value of a statement,
// outside of the class 22 of SQLSTATE.
var mysqlRefusals = []string{
	"1064", // ER_PARSE_ERROR: LIMIT -1, if the driver inserts the values into the text
	"1139", // ER_REGEXP_ERROR
	"1210", // ER_WRONG_ARGUMENTS: LIMIT -1 in a prepared statement
	"1267", // ER_CANT_AGGREGATE_2COLLATIONS: an emoji, and a column in latin1
	"1300", // ER_INVALID_CHARACTER_STRING
	"1366", // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
	"3854", // ER_CANNOT_CONVERT_STRING
	"3988", // ER_IMPOSSIBLE_STRING_CONVERSION
}
