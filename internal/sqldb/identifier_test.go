package sqldb

import (
	"strings"
	"testing"
)

func TestIdentifiers(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, s := range []string{"a", "Az_09", "0", long} {
		if !IsIdentifier(s) || !IsTable(s) || !IsTable(s+"."+s) {
			t.Errorf("%q is none", s)
		}
	}
	for _, s := range []string{"", long + "a", "a b", "a`", "a.", ".a", "a;", "é", "a\x00", "a-b"} {
		if IsIdentifier(s) || IsTable(s) || IsTable("a."+s) {
			t.Errorf("%q is one", s)
		}
	}
	if IsIdentifier("a.b") || IsTable("a.b.c") {
		t.Error("there are two parts at most")
	}
	if got := OwnPostgres("a") + OwnPostgres("a.b"); got != `"public"."a""a"."b"` {
		t.Error(got)
	}
	if got := QuoteStandard("a") + QuoteStandard("a.b"); got != `"a""a"."b"` {
		t.Error(got)
	}
	if got := Quote("a") + Quote("a.b"); got != "`a``a`.`b`" {
		t.Error(got)
	}
}
