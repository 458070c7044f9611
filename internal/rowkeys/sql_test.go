package rowkeys

import "testing"

// TestChangesRows: SQL that changes rows is found behind comments, in later statements, and in
// statements that begin as queries do. A query is not taken for it.
func TestChangesRows(t *testing.T) {
	for sql, want := range map[string]bool{
		"UPDATE items SET price = 1":                                true,
		" (UPDATE items SET price = 1)":                             true,
		"-- a comment\nUPDATE items SET price = 1":                  true,
		"# a comment\nUPDATE items SET price = 1":                   true,
		"/* a; b */ DELETE FROM items":                              true,
		"/* a */ -- b\n /* c */ DELETE FROM items":                  true,
		"/*! UPDATE items SET price = 1 */":                         true,
		"/*!50000 UPDATE items SET price = 1 */":                    true,
		"SELECT '--'; UPDATE items SET price = 1":                   true,
		"SELECT '/*'; UPDATE items SET price = 1; SELECT '*/'":      true,
		"SELECT 1; -- a comment\nUPDATE items SET price = 1":        true,
		"SELECT 1; # a comment\nUPDATE items SET price = 1":         true,
		"BEGIN; UPDATE items SET price = 1; COMMIT":                 true,
		"WITH x AS (SELECT 1) UPDATE items SET price = 1":           true,
		"WITH x AS (DELETE FROM items RETURNING *) SELECT * FROM x": true,
		"EXPLAIN ANALYZE UPDATE items SET price = 1":                true,
		"ANALYZE UPDATE items SET price = 1":                        true,
		"ANALYZE FORMAT=JSON DELETE FROM items":                     true,
		"CALL raise()":                                              true,
		"DO $$ BEGIN UPDATE items SET price = 1; END $$":            true,
		"TRUNCATE items":                                            true,
		"COPY items FROM STDIN":                                     true,
		"REPLACE INTO items VALUES (1)":                             true,
		"LOAD DATA INFILE 'a' INTO TABLE items":                     true,

		"":                                  false,
		"SELECT 1":                          false,
		"select price FROM items;":          false,
		"-- UPDATE items SET price = 1\n":   false,
		"/* a comment */ SELECT 1":          false,
		"(SELECT 1) UNION (SELECT 2)":       false,
		"SELECT 'UPDATE items SET price'":   false,
		"SELECT update_items FROM x":        false,
		"WITH x AS (SELECT 1) SELECT price": false,
		"EXPLAIN SELECT 1":                  false,
		"ANALYZE items":                     false,
		"ANALYZE TABLE items":               false,
		"SET x = 1":                         false,
		"CREATE TABLE items (id BIGINT)":    false,
		"SAVEPOINT a":                       false,
	} {
		if got := ChangesRows(sql); got != want {
			t.Errorf("ChangesRows(%q) = %t", sql, got)
		}
	}
}
