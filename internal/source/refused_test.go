package source

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A question is a statement with its value, and whether the database refuses the value. If neither
// field is set, the statement fails for another reason.
type question struct {
	statement string
	value     any
	refused   bool
}

func (q question) ask(t *testing.T, db *sql.DB) {
	t.Helper()
	rows, err := db.Query(q.statement, q.value)
	if err == nil {
		for rows.Next() {
		}
		err = rows.Err()
		rows.Close()
	}
	wrapped := fmt.Errorf("loading: %w", errors.Join(errors.New("other"), err))
	switch {
	case err == nil:
		t.Errorf("%s with %q: no error", q.statement, q.value)
	case refusesKey(err) != q.refused, refusesKey(wrapped) != q.refused:
		t.Errorf("%s with %q: %t and wrapped %t: %v", q.statement, q.value, refusesKey(err), refusesKey(wrapped), err)
	}
}

const table = "CREATE TABLE rows_of_t (id int PRIMARY KEY, name varchar(5), latin varchar(5))"

func prepare(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func TestRefusalsOfPostgres(t *testing.T) {
	db := testenv.SharedPostgres(t).DB(t)
	prepare(t, db, table)
	for _, q := range []question{
		{"SELECT * FROM rows_of_t WHERE name = $1", "a\x00b", true},
		{"SELECT * FROM rows_of_t WHERE name = $1", "a\xffb", true},
		{"SELECT * FROM rows_of_t WHERE name = ANY($1)", []string{"a", "a\x00b"}, true},
		{"SELECT * FROM rows_of_t WHERE id = $1", int64(3e9), true},
		{"SELECT * FROM rows_of_t WHERE id = ANY($1)", []int64{1, 3e9}, true},
		{"SELECT * FROM rows_of_t WHERE id = $1", uint64(1 << 63), true},
		{"SELECT * FROM rows_of_t WHERE id = $1", "x", true},
		{"SELECT * FROM rows_of_t WHERE id = $1::int * 1000000", 3000, true},
		{"SELECT * FROM rows_of_t WHERE name = $1::uuid::text", "x", true},
		{"SELECT * FROM rows_of_t WHERE name = $1::date::text", "x", true},
		{"SELECT * FROM rows_of_t WHERE name ~ $1", "(", true},
		{"SELECT * FROM rows_of_t OFFSET $1", -20, true},
		{"SELECT * FROM rows_of_t LIMIT $1", -1, true},
		{"SELECT * FROM missing WHERE id = $1", 1, false},
		{"SELECT * FRO rows_of_t WHERE id = $1", 1, false},
	} {
		q.ask(t, db)
	}
}

func TestRefusalsOfMySQL(t *testing.T) {
	server := testenv.SharedMariaDB(t)
	prepared := server.DB(t)
	prepare(t, prepared, table+" CHARACTER SET latin1")
	for _, q := range []question{
		{"SELECT * FROM rows_of_t WHERE latin = ?", "a😀b", true},
		{"SELECT * FROM rows_of_t WHERE id = ? * 9223372036854775807", 30, true},
		{"SELECT 'a' REGEXP ?", "(", true},
		{"SELECT * FROM missing WHERE id = ?", 1, false},
	} {
		q.ask(t, prepared)
	}
	inserted, err := sql.Open("mysql", server.DSN(t)+"&interpolateParams=true")
	if err != nil {
		t.Fatal(err)
	}
	defer inserted.Close()
	question{"SELECT * FROM rows_of_t LIMIT 20 OFFSET ?", -20, true}.ask(t, inserted)
}

func TestRefusalsOfSQLite(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	prepare(t, db, table)
	for _, q := range []question{
		{"SELECT * FROM rows_of_t LIMIT 20 OFFSET ?", "x", true},
		{"SELECT * FROM rows_of_t WHERE id = ?", uint64(1 << 63), true},
		{"SELECT abs(?)", int64(-1 << 63), true},
		{"SELECT * FROM missing WHERE id = ?", 1, false},
	} {
		q.ask(t, db)
	}
}

// Texts of servers that these tests do not start, and texts that are not those of a server.
func TestTexts(t *testing.T) {
	for text, want := range map[string]bool{
		"Error 1210 (HY000): Incorrect arguments to mysqld_stmt_execute":                                                   true, // MySQL
		"Error 3988 (HY000): Conversion from collation utf8mb4_general_ci into latin1_swedish_ci impossible for parameter": true,
		"Error 1292 (22007): Incorrect DATE value: 'x'":                                                                    true,
		"Error 1040 (08004): Too many connections":                                                                         false,
		"Error 1205 (HY000): Lock wait timeout exceeded":                                                                   false,
		"dial tcp 127.0.0.1:3306: connect: connection refused":                                                             false,
		"the key Error 1210 (HY000): x cannot be found":                                                                    false,
	} {
		if got := refusesKey(errors.New(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
