package mysqlbinlog

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// ofMySQL are types, and character sets, of MySQL's own.
var ofMySQL = []columnType{
	{"vu", "VARCHAR(20) COLLATE utf8mb4_0900_ai_ci", []string{"'é'"}},
	{"vz", "VARCHAR(20) CHARACTER SET gb18030", []string{"'abc'"}},
	{"vec", "VECTOR(2)", []string{"TO_VECTOR('[1,-2.5]')"}},
}

// columnType is a column, with expressions for its values.
type columnType struct {
	name, kind string
	values     []string
}

// columnTypes are columns of the types that both servers have.
var columnTypes = []columnType{
	{"b8", "TINYINT", []string{"-128", "127", "0"}},
	{"u8", "TINYINT UNSIGNED", []string{"255", "0"}},
	{"y", "YEAR", []string{"2026", "1901", "0"}}, // between numbers: the log's list of signs is counted over some types only
	{"b16", "SMALLINT", []string{"-32768", "32767"}},
	{"u16", "SMALLINT UNSIGNED", []string{"65535"}},
	{"b24", "MEDIUMINT", []string{"-8388608", "8388607"}},
	{"u24", "MEDIUMINT UNSIGNED", []string{"16777215"}},
	{"b32", "INT", []string{"-2147483648", "2147483647"}},
	{"u32", "INT UNSIGNED", []string{"4294967295"}},
	{"b64", "BIGINT", []string{"-9223372036854775808", "9223372036854775807"}},
	{"u64", "BIGINT UNSIGNED", []string{"18446744073709551615", "1"}},
	{"flag", "BOOLEAN", []string{"TRUE", "FALSE"}},
	{"price", "DECIMAL(10,2)", []string{"0", "-0.5", "12345678.90", "0.01", "-0.001"}},
	{"big", "DECIMAL(65,30)", []string{"-12345678901234567890123456789012345.000000000000000000000000000001", "1"}},
	{"whole", "DECIMAL(20,0) UNSIGNED", []string{"0", "99999999999999999999"}},
	{"zi", "INT(6) ZEROFILL", []string{"42", "0", "1234567"}},
	{"zt", "TINYINT ZEROFILL", []string{"5", "255"}},
	{"zm", "MEDIUMINT(4) ZEROFILL", []string{"5", "16777215"}},
	{"zb", "BIGINT ZEROFILL", []string{"7", "18446744073709551615"}},
	{"zd", "DECIMAL(8,2) ZEROFILL", []string{"4.2", "0", "999999.99"}},
	{"zw", "DECIMAL(5,0) ZEROFILL", []string{"42", "99999"}},
	{"f", "FLOAT", []string{"0.25", "-1.5", "0"}},
	{"d", "DOUBLE", []string{"0.1", "-123456.789", "0"}},
	{"bit1", "BIT(1)", []string{"b'1'", "b'0'"}},
	{"bit12", "BIT(12)", []string{"b'101010101010'", "b'1'"}},
	{"bit64", "BIT(64)", []string{"x'ffffffffffffffff'", "b'0'"}},
	{"day", "DATE", []string{"'2026-11-22'", "'1000-01-01'", "'0000-00-00'", "'2026-00-00'"}},
	{"t0", "TIME", []string{"'00:00:00'", "'-838:59:59'", "'12:34:56'"}},
	{"t2", "TIME(2)", []string{"'00:00:00'", "'-00:00:00.01'", "'-00:00:01'", "'100:00:00.5'"}},
	{"t3", "TIME(3)", []string{"'00:00:00'", "'-00:00:00.5'", "'23:59:59.999'", "'01:00:00'"}},
	{"t6", "TIME(6)", []string{"'00:00:00'", "'-00:00:00.000001'", "'838:59:58.999999'", "'01:00:00'"}},
	{"dt0", "DATETIME", []string{"'2026-11-22 13:14:15'", "'0000-00-00 00:00:00'", "'9999-12-31 23:59:59'"}},
	{"dt3", "DATETIME(3)", []string{"'2026-11-22 13:14:15.016'", "'2026-11-22 13:14:15'", "'0000-00-00 00:00:00'"}},
	{"dt6", "DATETIME(6)", []string{"'2026-03-29 02:30:00.000001'", "'1000-01-01'"}},
	{"ts0", "TIMESTAMP NULL", []string{"'2026-03-29 02:30:00'", "'0000-00-00 00:00:00'", "'1970-01-01 00:00:01'"}},
	{"ts6", "TIMESTAMP(6) NULL", []string{"'2026-10-25 02:30:00.123456'", "'2038-01-19 03:14:07'", "0"}},
	{"c", "CHAR(10)", []string{"'x'", "'  a b  '", "''", "'äöü€🙂'"}},
	{"v", "VARCHAR(300)", []string{"'x '", "''", "REPEAT('ß', 300)", "'🙂'"}},
	{"vl", "VARCHAR(20) CHARACTER SET latin1", []string{"'é€ÿ'", "'a'"}},
	{"cl", "CHAR(20) CHARACTER SET latin1", []string{"'é€ÿ'"}},
	{"v16", "VARCHAR(20) CHARACTER SET utf16", []string{"'é€🙂'", "''"}},
	{"v16l", "VARCHAR(20) CHARACTER SET utf16le", []string{"'é€🙂'"}},
	{"v2", "VARCHAR(20) CHARACTER SET ucs2", []string{"'é€'"}},
	{"v32", "VARCHAR(20) CHARACTER SET utf32", []string{"'é€🙂'"}},
	{"vg", "VARCHAR(20) CHARACTER SET gbk", []string{"'abc'"}},
	{"tt", "TINYTEXT", []string{"'x'", "''"}},
	{"tx", "TEXT", []string{"'é'", "REPEAT('long', 20000)"}},
	{"lt", "LONGTEXT CHARACTER SET latin1", []string{"'é'"}},
	{"bl", "BLOB", []string{"x'00ff00'", "''"}},
	{"vb", "VARBINARY(20)", []string{"x'00ff00'", "''"}},
	{"b16x", "BINARY(16)", []string{"x'00010200'", "x'ffffffffffffffffffffffffffffff00'", "''"}},
	{"b255", "BINARY(255)", []string{"'x'"}},
	{"e", "ENUM('a','é','c d') CHARACTER SET latin1", []string{"'a'", "'é'", "'c d'"}},
	{"s", "SET('a','é','c') CHARACTER SET utf8mb4", []string{"'a,c'", "'é'", "''", "'a,é,c'"}},
	{"j", "JSON", []string{`'{"a": [1, "é"]}'`, "'null'"}},
}

// ofMariaDB are types that MySQL has not got.
var ofMariaDB = []columnType{
	{"vu", "VARCHAR(20) COLLATE utf8mb4_uca1400_ai_ci", []string{"'é'"}},
	{"y2", "YEAR(2)", []string{"2005", "1999", "2000"}},
	{"u", "UUID", []string{"'01234567-89ab-1def-8123-456789abcdef'", "'01234567-89ab-4def-8123-456789ab0000'", "UUID()"}},
	{"i6", "INET6", []string{"'::'", "'::1'", "'1::2'", "'::ffff:1.2.3.4'", "'fe80::1:0:0:1'", "'2001:db8:0:0:1:0:0:1'", "'1:2:3:4:5:6:7:8'"}},
	{"i4", "INET4", []string{"'0.0.0.0'", "'10.0.0.0'", "'255.255.255.255'"}},
}

// Values have the text that the server gives to them.
func TestValuesOfAllTypes(t *testing.T) { each(t, testValuesOfAllTypes) }

func testValuesOfAllTypes(x *world) {
	t := x.T
	columnTypes, keys := columnTypes, []string{"v", "n"}
	if x.mysql() {
		columnTypes = append(slices.Clone(columnTypes), ofMySQL...)
	} else {
		columnTypes, keys = append(slices.Clone(columnTypes), ofMariaDB...), append(keys, "u", "i6")
	}
	var defs, names, casts []string
	for _, c := range columnTypes {
		defs = append(defs, c.name+" "+c.kind)
		names = append(names, c.name)
		switch {
		case strings.HasPrefix(c.kind, "BIT"):
			casts = append(casts, "CAST("+c.name+"+0 AS CHAR)")
		case strings.Contains(c.kind, "B(") || strings.Contains(c.kind, "BINARY") || c.kind == "BLOB" ||
			strings.HasPrefix(c.kind, "VECTOR"):
			casts = append(casts, c.name)
		default:
			casts = append(casts, "CONVERT("+c.name+" USING utf8mb4)")
		}
	}
	db, err := sql.Open("mysql", x.server.DSN(t)+"&time_zone=%27%2B00%3A00%27&sql_mode=%27ALLOW_INVALID_DATES%27")
	x.Check(err)
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE v (n INT PRIMARY KEY, " + strings.Join(defs, ", ") + ")"); err != nil {
		t.Fatal(err)
	}
	l := x.Listen(x.source(), x.Need(keys))
	r := rand.New(rand.NewPCG(1, 2))
	const rows = 60
	for n := range rows {
		values := []string{fmt.Sprint(n)}
		for _, c := range columnTypes {
			v := c.values[(n+len(values))%len(c.values)]
			if r.IntN(6) == 0 {
				v = "NULL"
			}
			values = append(values, v)
		}
		if _, err := db.Exec("INSERT INTO v (n, " + strings.Join(names, ",") + ") VALUES (" + strings.Join(values,
			",") + ")"); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string][]sql.NullString{}
	all, err := db.Query("SELECT n, " + strings.Join(casts, ",") + " FROM v")
	x.Check(err)
	for all.Next() {
		row := make([]sql.NullString, len(names)+1)
		into := make([]any, len(row))
		for i := range row {
			into[i] = &row[i]
		}
		x.Check(all.Scan(into...))
		want[row[0].String] = row[1:]
	}
	x.Check(all.Err())
	if _, err := db.Exec("UPDATE v SET n = n + 1000"); err != nil {
		t.Fatal(err)
	}
	same := func(r event.Row, n string) {
		t.Helper()
		for i, name := range names {
			v, w := r.Get(name), want[n][i]
			if w.Valid && strings.Contains(columnTypes[i].kind, "ZEROFILL") {
				w.String = cmp.Or(strings.TrimLeft(w.String, "0"), "0")
				if strings.HasPrefix(w.String, ".") {
					w.String = "0" + w.String
				}
			}
			if !v.Known() || v.IsNull() == w.Valid || v.Text() != w.String {
				t.Errorf("row %s, column %s %s: %v %q, the server says %q", n, name, columnTypes[i].kind, v, v.Text(),
					w.String)
			}
		}
	}
	changes := l.Changes(2 * rows)
	for i, c := range changes[:rows] {
		same(c.After, fmt.Sprint(i))
	}
	for i, c := range changes[rows:] {
		same(c.Before, fmt.Sprint(i))
		same(c.After, fmt.Sprint(i))
		if got := c.After.Get("n").Text(); got != fmt.Sprint(1000+i) {
			t.Error(got)
		}
	}
}

// Each byte that is decoded has the meaning that the server gives it.
func TestCharacterSets(t *testing.T) { each(t, testCharacterSets) }

func testCharacterSets(x *world) {
	t := x.T
	rows, err := x.DB.Query("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
	x.Check(err)
	sets := map[string]int{}
	for rows.Next() {
		var name string
		var width int
		x.Check(rows.Scan(&name, &width))
		sets[name] = width
	}
	x.Check(rows.Err())
	if len(sets) < 30 {
		t.Fatal(sets)
	}
	conn, err := x.DB.Conn(t.Context())
	x.Check(err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "SET NAMES utf8mb4")
	x.Check(err)
	understood, some := 0, 8 // one byte of each group of this size, with another offset in each character set
	if testenv.Accepting {
		some = 1
	}
	for i, set := range slices.Sorted(maps.Keys(sets)) {
		decode := decoder(set)
		for b := i % some; b < 256; b += some {
			for _, bytes := range [][]byte{{byte(b)}, {'A', byte(b)}, {0, byte(b)}, {byte(b), 0, 0x20, byte(b)},
				{0, 0, 0x20, byte(b)}} {
				got, ok := decode(bytes)
				if !ok || set == "binary" || set == "utf8mb3" || set == "utf8mb4" || set == "ascii" {
					continue
				}
				var want string
				if err := conn.QueryRowContext(t.Context(),
					fmt.Sprintf("SELECT CONVERT(CAST(x'%x' AS CHAR CHARACTER SET %s) USING utf8mb4)", bytes,
						set)).Scan(&want); err != nil {
					continue // no text of this set
				}
				if fmt.Sprintf("%x", bytes) == "" || want == "?" || strings.Contains(want, "?") &&
					!strings.Contains(got, "?") {
					continue // nor this
				}
				if understood++; got != want {
					t.Errorf("%s: % x is %q, and %q to the server", set, bytes, got, want)
				}
			}
		}
	}
	t.Log(understood, "texts")
}
