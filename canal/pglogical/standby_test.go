package pglogical

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestIsStandby(t *testing.T) {
	for names, want := range map[string]bool{
		"": false, "*": true, `"*"`: true, "a": false, "cacheaside": true, "CacheAside": true, "a, cacheaside": true, `a,"cacheaside"`: true, `"cache aside"`: false, "cacheaside2": false,
		"FIRST 1 (a, b)": false, "first 2 (a, cacheaside, b)": true, "ANY 1 (cacheaside)": true, "1 (a)": false, "2(a,*)": true, ` ANY "1" ( a )`: false, `"a""b", cacheaside`: true, `"a, cacheaside"`: false,
	} {
		if got := isStandby("cacheaside", names); got != want {
			t.Errorf("%s: %v", names, got)
		}
	}
	for _, c := range []struct{ application, names string }{{"any", "ANY 1 (a)"}, {"first", "FIRST 1 (a)"},
		{"1", "1 (a)"}} {
		if isStandby(c.application, c.names) {
			t.Errorf("%s is a standby of %s", c.application, c.names)
		}
	}
	if !isStandby(`a"b`, `"A""B"`) {
		t.Error("a name with a quotation mark")
	}
}

// A commit must not wait for the Source, which waits for the commit. The user of the guide does not
// see the state of replication connections.
func TestSynchronousStandbyWithoutPrivileges(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE ROLE follower LOGIN REPLICATION")
	as := func(o *Options) { o.ConnString = strings.Replace(o.ConnString, "postgres@", "follower@", 1) }
	for _, names := range []string{"*", "ANY 1 (other, cacheaside)"} {
		l := x.Listen(x.source(as), x.Need([]string{"users", "id"}))
		x.Do("ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
		x.IsSetup(l.Ended(), "synchronous_standby_names", "application_name is cacheaside")
		x.IsSetup(x.Start(x.source(as), x.Need([]string{"users", "id"})).Ended(), "synchronous_standby_names")
		x.Do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
		testenv.Eventually(x, "it is reset", func() bool { return x.Ask("SHOW synchronous_standby_names") == "" })
	}
}

// A slot with two_phase has prepared transactions in messages of a later protocol.
func TestSlotWithTwoPhase(t *testing.T) {
	x := own(t, "max_prepared_transactions=10")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)",
		"SELECT pg_create_logical_replication_slot('"+x.name+"', 'pgoutput', false, true)")
	x.refused(x.Need([]string{"users", "id"}), "two_phase", "pg_drop_replication_slot('"+x.name+"')")
}
