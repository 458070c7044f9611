package mysqlbinlog

import "testing"

// A Source asks the server about a table once, not for each transaction. Checksums differ between
// events that describe the same table.
func TestTableIsDescribedOnce(t *testing.T) { each(t, tableIsDescribedOnce) }

func tableIsDescribedOnce(x *world) {
	for _, checksum := range []string{"CRC32", "NONE"} {
		x.Run(checksum, func(t *testing.T) {
			w := worldOn(t, x.server)
			w.set("binlog_checksum", checksum)
			w.set("log_output", "TABLE")
			w.set("general_log", "1")
			w.Do("CREATE TABLE a (id INT PRIMARY KEY)")
			l := w.Listen(w.source(), w.Need([]string{"a", "id"}))
			w.Do("INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)", "INSERT INTO a VALUES (3)")
			l.Want("insert a: 1", "insert a: 2", "insert a: 3")
			const questions = "SELECT COUNT(*) FROM mysql.general_log WHERE command_type IN ('Query', 'Execute') AND " +
				"CONVERT(argument USING utf8mb4) LIKE "
			asked := func() string {
				return w.Ask(questions + "'SELECT COLUMN_NAME, DATA_TYPE,%''" + w.Schema + "'' %'")
			}
			if n := asked(); n != "1" {
				t.Errorf("the server was asked %s times", n)
			}
			w.Do("ALTER TABLE a ADD COLUMN s INT", "INSERT INTO a VALUES (4, 1)")
			l.Want("insert a: 1", "insert a: 2", "insert a: 3", "alter a", "insert a: 4 1")
			if n := asked(); n != "2" {
				t.Errorf("the server was asked %s times after the table was altered", n)
			}
		})
	}
}
