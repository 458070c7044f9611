package pglogical

import "testing"

// After two schemas have swapped their names, the rows of a table arrive under its new name only.
// The old table of that name is not needed any more.
func TestSchemasSwapTheirNames(t *testing.T) {
	x := shared(t)
	x.Do("CREATE SCHEMA shop", "CREATE SCHEMA shop_new",
		"CREATE TABLE shop.users (id INT PRIMARY KEY)", "CREATE TABLE shop_new.users (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"shop.users", "id"}))
	x.Do("INSERT INTO shop.users VALUES (1)", "INSERT INTO shop_new.users VALUES (2)")
	l.Want("insert shop.users: 1")
	x.Do("BEGIN; ALTER SCHEMA shop RENAME TO shop_old; ALTER SCHEMA shop_new RENAME TO shop; COMMIT")
	l.Want("insert shop.users: 1", "replace shop.users")
	x.Do("INSERT INTO shop_old.users VALUES (3)", "INSERT INTO shop.users VALUES (4)")
	l.Want("insert shop.users: 1", "replace shop.users", "insert shop.users: 4")
}
