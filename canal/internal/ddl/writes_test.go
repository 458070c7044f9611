package ddl

import (
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Which table a statement changes is known if it names only one.
func TestWrites(t *testing.T) {
	for statement, want := range map[string]string{
		"INSERT INTO users (id) VALUES (1)":                   "shop.users",
		"insert ignore users select * from other":             "shop.users",
		"INSERT INTO `a b`.`c``d` VALUES ('x')":               "a b.c`d",
		"/* c */ REPLACE INTO d.users SET id = 1":             "d.users",
		"REPLACE DELAYED users VALUES (1)":                    "shop.users",
		"UPDATE users SET a = 1, b = 'it\\'s'":                "shop.users",
		"UPDATE LOW_PRIORITY IGNORE users u SET u.a = 1":      "shop.users",
		"UPDATE users AS u SET u.a = (SELECT 1 FROM x, y)":    "shop.users",
		"DELETE FROM users":                                   "shop.users",
		"DELETE QUICK FROM users WHERE id IN (SELECT 1)":      "shop.users",
		"DELETE FROM users ORDER BY id LIMIT 1":               "shop.users",
		"DELETE HISTORY FROM users":                           "shop.users",
		"DELETE HISTORY FROM users BEFORE SYSTEM_TIME '2026'": "shop.users",
		"UPDATE users, other SET users.a = 1":                 "",
		"UPDATE users u, other SET u.a = 1":                   "",
		"UPDATE users JOIN other SET a = 1":                   "",
		"UPDATE users INNER JOIN other SET a = 1":             "",
		"UPDATE users STRAIGHT_JOIN other SET a = 1":          "",
		"UPDATE users PARTITION (p), other SET a = 1":         "",
		"UPDATE users USE INDEX (i), other SET a = 1":         "",
		"UPDATE (users) SET a = 1":                            "",
		"DELETE users FROM users":                             "",
		"DELETE FROM users, other USING users JOIN other":     "",
		"DELETE FROM users USING users, other":                "",
		"DELETE FROM users.* USING users":                     "",
		"WITH c AS (SELECT 1) UPDATE users SET a = 1":         "",
		"CALL p()":               "",
		"SELECT f()":             "",
		"LOAD DATA INFILE 'x'":   "",
		"INSERT":                 "",
		"INSERT INTO 'users'":    "",
		"UPDATE users SET a = '": "shop.users", // the server has executed it; what is behind the name does not matter
		"":                       "",
	} {
		got, ok := Writes(statement, "shop")
		if name := got.Schema + "." + got.Name; ok != (want != "") || ok && name != want {
			t.Errorf("%s: %s, %v", statement, name, ok)
		}
	}
	if got, ok := Writes("INSERT INTO users VALUES (1)", ""); ok || got != (event.Table{}) {
		t.Error("a table of no schema:", got)
	}
}
