package mysqlbinlog

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// With lower_case_table_names=1 the log has tables in small letters, but in the text of statements:
// https://dev.mysql.com/doc/refman/8.4/en/identifier-case-sensitivity.html.
//
// On MySQL, whose data directory has to be initialised for it, only with CACHEASIDE_ACCEPT.
func TestSmallLetters(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		smallLetters(worldOn(t, e.Start(t, "--lower-case-table-names=1")))
	})
}

func smallLetters(x *world) {
	x.Do("CREATE TABLE Users (id INT PRIMARY KEY)", "CREATE DATABASE Shop",
		"CREATE TABLE Shop.Items (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}, []string{"shop.items", "id"}))
	x.Do("INSERT INTO USERS VALUES (1)", "TRUNCATE TABLE Users", "RENAME TABLE Users TO Old, SHOP.Items TO Users",
		"DROP DATABASE SHOP")
	l.Want("insert users: 1", "truncate users", "alter users", "replace old", "alter shop.items", "replace users",
		"alter shop.")
	_ = l.Stop()

	x.IsSetup(x.Start(x.source(), x.Need([]string{"Users", "id"})).Ended(), "lower_case_table_names is 1",
		x.Schema+".Users")
	x.IsSetup(x.Start(x.source(), x.Need([]string{"users", "id"}, []string{"Shop.items", "id"})).Ended(), "Shop.items")
}
