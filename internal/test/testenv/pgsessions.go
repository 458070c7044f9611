package testenv

import (
	"os"
	"testing"
)

// Sessions are settings of sessions, as parameters of a URL for pgx. A pooled connection may have
// any of them, and the library's SQL must not depend on them.
func (p *Postgres) Sessions() []string {
	return []string{
		"default_transaction_isolation=serializable",
		"default_transaction_isolation=repeatable%20read",
		"default_transaction_isolation=serializable&default_transaction_deferrable=on",
		"default_query_exec_mode=cache_describe",
		"default_query_exec_mode=describe_exec",
		"default_query_exec_mode=exec",
		"default_query_exec_mode=simple_protocol",
		"default_query_exec_mode=exec&default_transaction_isolation=serializable",
		"timezone=Pacific/Kiritimati",
		"timezone=Etc/GMT%2B12&datestyle=SQL,DMY",
		"intervalstyle=iso_8601",
		"bytea_output=escape",
		"standard_conforming_strings=off&escape_string_warning=off",
		"backslash_quote=on&standard_conforming_strings=off",
		"extra_float_digits=-15",
		"client_encoding=LATIN1",
		"enable_indexscan=off&enable_bitmapscan=off&enable_indexonlyscan=off",
		"enable_seqscan=off",
		"plan_cache_mode=force_generic_plan",
		"transform_null_equals=on",
		"quote_all_identifiers=on",
		"synchronous_commit=off",
		"row_security=off",
		"cursor_tuple_fraction=0",
	}
}

// SessionDSN returns the URL of the test's database with settings of Sessions.
func (p *Postgres) SessionDSN(t testing.TB, settings string) string {
	return p.DSN(t) + "&" + settings
}

// RequirePassword makes the server ask a role for its password. All others need none.
func (p *Postgres) RequirePassword(t testing.TB, role string) {
	t.Helper()
	var file string
	db := p.DB(t)
	err := db.QueryRow("SHOW hba_file").Scan(&file)
	if err == nil {
		err = os.WriteFile(file, []byte("host all,replication "+role+
			" 127.0.0.1/32 scram-sha-256\nhost all,replication all 127.0.0.1/32 trust\n"), 0o600)
	}
	if err == nil {
		_, err = db.Exec("SELECT pg_reload_conf()")
	}
	if err != nil {
		t.Fatal(err)
	}
}
