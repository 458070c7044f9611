package envelope

import (
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Which values can be keys: those whose text is certainly the client's.
func TestExact(t *testing.T) {
	flat := func(mysqlType, value string) string {
		return fmt.Sprintf(`{"type":"INSERT","database":"d","table":"t","data":[{"c":%s}],"mysqlType":{"c":%q}}`, value,
			mysqlType)
	}
	plain := func(value string) string {
		return `{"type":"insert","database":"d","table":"t","data":{"c":` + value +
			`},"op":"c","source":{"db":"d","table":"t"},"after":{"c":` + value + `}}`
	}
	of := func(kind, source, more string) string {
		return fmt.Sprintf(`"type":%q,"parameters":{"__debezium.source.column.type":%q%s}`, kind, source, more)
	}
	named := func(kind, name, source, more string) string {
		return fmt.Sprintf(`"name":%q,%s`, name, of(kind, source, more))
	}
	const (
		length  = `,"__debezium.source.column.length":`
		decimal = "org.apache.kafka.connect.data.Decimal"
	)
	for _, c := range []struct {
		decode        Decoder
		message, text string
		exact         bool
	}{
		{Canal, flat("float", `"1.5"`), "1.5", false},
		{Canal, flat("double(10,2) unsigned", `"1.5"`), "1.5", false},
		{Canal, flat("real", `"4"`), "4", false},
		{Canal, flat("decimal(8,2) unsigned zerofill", `"4.20"`), "4.20", false},
		{Canal, flat("decimal(5,0) unsigned zerofill", `"42"`), "42", false},
		{Canal, flat("decimal(8,2)", `"4.20"`), "4.20", true},
		{Canal, flat("int(6) unsigned zerofill", `"42"`), "42", false},
		{Canal, flat("int(6) unsigned", `"42"`), "42", true},
		{Canal, flat("year(4)", `"0"`), "0000", false},
		{Canal, flat("year(2)", `"2005"`), "05", false},
		{Canal, flat("binary(4)", `"\u0001"`), "\x01\x00\x00\x00", true},
		{Canal, flat("varbinary(4)", `"\u0001"`), "\x01", true},
		{Canal, flat("uuid", `"\u0001"`), "\x01", false},
		{Canal, flat("json", `"{\"a\": 1.0}"`), `{"a": 1.0}`, false},
		{Canal, flat("varchar(20)", `"1.5"`), "1.5", true},
		{Canal, flat("enum('zerofill','b')", `"1"`), "zerofill", true},
		{Maxwell, plain(`1.5`), "1.5", false},
		{Maxwell, plain(`4.0E-7`), "4.0E-7", false},
		{Maxwell, plain(`42`), "42", true},
		{Maxwell, plain(`"1.5"`), "1.5", true},
		{Maxwell, plain(`["a","b"]`), "a,b", false},
		{Maxwell, plain(`{"a":1}`), `{"a":1}`, false},
		{Debezium, plain(`1.5`), "1.5", false},
		{Debezium, plain(`42`), "42", true},
		{Debezium, column(of("float", "FLOAT", ""), `1.5`), "1.5", false},
		{Debezium, column(`"type":"double"`, `4.0`), "4", false},
		{Debezium, column(of("double", "DECIMAL", length+`"8"`), `4.2`), "4.2", false},
		{Debezium, column(of("string", "BINARY", length+`"2"`), `"AP8="`), "AP8=", false},
		{Debezium, column(of("string", "VARBINARY", ""), `"00ff"`), "00ff", false},
		{Debezium, column(of("string", "mediumblob", ""), `"00ff"`), "00ff", false},
		{Debezium, column(of("bytes", "BINARY", length+`"2"`), `"AP8="`), "\x00\xff", true},
		{Debezium, column(of("string", "VARCHAR", length+`"20"`), `"00ff"`), "00ff", true},
		{Debezium, column(`"type":"string"`, `"00ff"`), "00ff", true},
		{Debezium, column(of("string", "DECIMAL UNSIGNED ZEROFILL", length+`"8"`), `"4.20"`), "4.20", false},
		{Debezium, column(named("bytes", decimal, "DECIMAL UNSIGNED ZEROFILL", length+`"8","scale":"2"`), `"AaQ="`), "4.20", false},
		{Debezium, column(named("bytes", decimal, "DECIMAL UNSIGNED ZEROFILL", `,"scale":"2"`), `"AaQ="`), "4.20", false},
		{Debezium, column(named("bytes", decimal, "NUMERIC", length+`"8","scale":"9"`), `4.2E-7`), "4.2E-7", false},
		{Debezium, column(named("bytes", decimal, "NUMERIC", length+`"8","scale":"2"`), `4.20`), "4.20", true},
		{Debezium, column(of("int64", "INT UNSIGNED ZEROFILL", length+`"6"`), `42`), "42", false},
		{Debezium, column(of("int64", "INT UNSIGNED ZEROFILL", ""), `42`), "42", false},
		{Debezium, column(of("int64", "INT UNSIGNED", ""), `42`), "42", true},
		{Debezium, column(named("int32", "io.debezium.time.Year", "YEAR", ""), `0`), "0000", false},
		{Debezium, column(named("int32", "io.debezium.time.Year", "YEAR", ""), `2026`), "2026", true},
		{Debezium, column(named("int32", "io.debezium.time.Date", "DATE", ""), `1`), "1970-01-02", true},
		{Debezium, column(named("int32", "io.debezium.time.Date", "DATE", ""), `0`), "1970-01-01", false},
		{Debezium, column(`"type":"int64","name":"io.debezium.time.Timestamp"`, `1529476623120`), "2018-06-20 06:37:03.120", false},
		{Debezium, column(named("int64", "io.debezium.time.Timestamp", "DATETIME", ""), `1529476623000`), "2018-06-20 06:37:03", true},
		{Debezium, column(named("int64", "io.debezium.time.Timestamp", "DATETIME", length+`"2"`), `1529476623120`), "2018-06-20 06:37:03.12", true},
		{Debezium, column(named("int64", "org.apache.kafka.connect.data.Timestamp", "DATETIME", length+`"6"`), `1529476623120`), "2018-06-20 06:37:03.120000", false},
		{Debezium, column(named("string", "io.debezium.time.ZonedTimestamp", "TIMESTAMP", length+`"3"`), `"2018-06-20T13:37:03.1Z"`), "2018-06-20 13:37:03.100", true},
		{Debezium, column(`"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"2018-06-20T13:37:03.1Z"`), "2018-06-20 13:37:03.1", false},
		{Debezium, column(named("int64", "io.debezium.time.MicroTime", "TIME", length+`"2"`), `1120000`), "00:00:01.12", true},
		{Debezium, column(named("int32", "org.apache.kafka.connect.data.Time", "TIME", length+`"6"`), `1`), "00:00:00.001000", false},
		{Debezium, column(named("string", "io.debezium.time.IsoTimestamp", "DATETIME", length+`"3"`), `"2018-06-20T13:37:03.1Z"`), "2018-06-20 13:37:03.1", false},
		{Debezium, column(named("string", "io.debezium.data.Json", "JSON", ""), `"{}"`), "{}", false},
	} {
		changes, err := c.decode([]byte(c.message))
		if err != nil || len(changes) != 1 {
			t.Fatalf("%s: %v, %v", c.message, changes, err)
		}
		if v := changes[0].After.Get("c"); v.Text() != c.text || v.Exact() != c.exact {
			t.Errorf("%s: %q, exact %v", c.message, v.Text(), v.Exact())
		}
	}
	if (event.Value{}).Exact() || event.Omitted().Exact() || !event.Null().Exact() || event.Inexact("42").IsNull() {
		t.Error("values that are not")
	}
	if n, err := event.Inexact("0042").Int64(); n != 42 || err != nil {
		t.Error(n, err)
	}
}
