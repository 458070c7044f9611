package testenv

import (
	"strings"
	"testing"
)

// Sessions returns session settings, each as the parameters of a go-sql-driver/mysql DSN. A pooled
// connection may have any of them, and the library's SQL must not depend on them.
func (e Engine) Sessions() []string {
	all := []string{
		"clientFoundRows=true",
		"clientFoundRows=false",
		"interpolateParams=true&multiStatements=true&clientFoundRows=true",
		"autocommit=0",
		"tx_isolation='SERIALIZABLE'",
		"tx_isolation='READ-UNCOMMITTED'",
		"autocommit=0&tx_isolation='SERIALIZABLE'",
		"autocommit=0&tx_isolation='REPEATABLE-READ'&clientFoundRows=true",
		"timestamp=1000000000",           // 2001
		"timestamp=2000000000",           // 2033
		"timestamp=1&time_zone='-11:00'", // the earliest possible time
		"time_zone='+13:00'&loc=Asia%2FTokyo&parseTime=true",
		"time_zone='-11:00'",
		"charset=latin1",
		"charset=latin1&character_set_connection='utf8mb4'",
		"character_set_connection='utf16'",
		"collation_connection='utf8mb4_bin'",
		"sql_mode=''&sql_safe_updates=1&charset=latin1",
		"sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
		"sql_mode='ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE'",
		"sql_mode='PAD_CHAR_TO_FULL_LENGTH'",
		"sql_select_limit=0",
		"sql_select_limit=1",
		"sql_safe_updates=1",
		"big_tables=1",
	}
	if e == MariaDB {
		all = append(all,
			"sql_mode='EMPTY_STRING_IS_NULL'",
			"sql_mode='EMPTY_STRING_IS_NULL'&interpolateParams=true",
			"sql_mode='SIMULTANEOUS_ASSIGNMENT'",
			"sql_mode='ORACLE'",
			"innodb_snapshot_isolation=1",
		)
	}
	for i := range all {
		if e == MySQL {
			all[i] = strings.ReplaceAll(all[i], "tx_isolation", "transaction_isolation")
		}
		all[i] = strings.NewReplacer("'", "%27", "+", "%2B", ":", "%3A").Replace(all[i])
	}
	return all
}

// SessionDSN returns the data source name of the test's database with settings of Sessions.
func (s *SQLServer) SessionDSN(t testing.TB, settings string) string {
	base, _, _ := strings.Cut(s.DSN(t), "?")
	return base + "?" + settings
}
