package mysqlbinlog

import (
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// With lower_case_table_names=1 the log has tables in small letters, but in the text of statements:
// https://dev.mysql.com/doc/refman/8.4/en/identifier-case-sensitivity.html.
//
// On MySQL, whose data directory has to be made for it, only with CACHEASIDE_ACCEPT.
func TestSmallLetters(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		smallLetters(worldOn(t, e.Start(t, "--lower-case-table-names=1")))
	})
}

func smallLetters(x *world) {
	t := x.T
	x.do("CREATE TABLE Users (id INT PRIMARY KEY)", "CREATE DATABASE Shop", "CREATE TABLE Shop.Items (id INT PRIMARY KEY)")
	need := x.need([]string{"users", "id"})
	items := event.Table{Schema: "shop", Name: "items"}
	need.Tables[items] = []string{"id"}
	l := x.listen(x.source(), need)
	x.do("INSERT INTO USERS VALUES (1)", "TRUNCATE TABLE Users", "RENAME TABLE Users TO Old, SHOP.Items TO Users", "DROP DATABASE SHOP")
	l.want("insert users: 1", "truncate users", "alter users", "replace old", "alter items", "replace users", "alter ")
	all := l.changes(7)
	for i, schema := range []string{x.schema, x.schema, x.schema, x.schema, "shop", x.schema, "shop"} {
		if all[i].Schema != schema {
			t.Errorf("%v is not of schema %s", all[i], schema)
		}
	}
	_ = l.end()

	x.isSetup(x.run(x.source(), x.need([]string{"Users", "id"})).ended(), "lower_case_table_names is 1", x.schema+".Users")
	delete(need.Tables, items)
	need.Tables[event.Table{Schema: "Shop", Name: "items"}] = []string{"id"}
	x.isSetup(x.run(x.source(), need).ended(), "Shop.items")
}
