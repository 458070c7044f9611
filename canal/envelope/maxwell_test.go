package envelope

import (
	"strings"
	"testing"
	"time"
)

func TestMaxwell(t *testing.T) {
	const (
		format  = "zendesk/maxwell, docs/docs/dataformat.md"
		event   = "zendesk/maxwell, src/main/java/com/zendesk/maxwell/replication/BinlogConnectorEvent.java"
		rowMap  = "zendesk/maxwell, src/main/java/com/zendesk/maxwell/row/RowMap.java"
		columns = "zendesk/maxwell, src/main/java/com/zendesk/maxwell/schema/columndef/"
		tests   = "zendesk/maxwell, src/test/resources/sql/json/"
	)
	for name, q := range map[string]quirk{
		"an insert": {source: format,
			message: `{"database":"test","table":"e","type":"insert","ts":1477053217,"xid":23396,"commit":true,"position":"master.000006:800911","server_id":23042,"thread_id":108,"data":{"id":1,"m":4.2341,"c":"2016-10-21 05:33:37.523000","comment":"I am a creature of light."}}`,
			want: "insert test.e: none -> id=1|m=4.2341|c=2016-10-21 05:33:37.523000|comment=I am a creature of " +
				"light."},
		"an update: old is what was changed": {source: format,
			message: `{"database":"test","table":"e","type":"update","ts":1477053234,"data":{"id":1,"m":5.444,"n":null},"old":{"m":4.2341,"n":"x"}}`,
			want:    "update test.e: id=1|m=4.2341|n=x -> id=1|m=5.444|n NULL"},
		"a delete": {source: format,
			message: `{"database":"test","table":"e","type":"delete","data":{"id":1,"m":5.444}}`,
			want:    "delete test.e: id=1|m=5.444 -> none"},
		"an update with binlog_row_image=MINIMAL: what the e-mail was is not known": {source: event,
			message: `{"database":"d","table":"t","type":"update","data":{"email":"new","id":1}}`,
			want:    "update d.t:  -> email=new|id=1"},
		"an old that is empty": {source: event,
			message: `{"database":"d","table":"t","type":"update","data":{"id":1},"old":{}}`,
			want:    "update d.t:  -> id=1"},
		"output_null=false: what is only in old is NULL now": {source: rowMap,
			message: `{"database":"d","table":"t","type":"update","data":{"id":1},"old":{"email":"x"}}`,
			want:    "update d.t: id=1|email=x -> id=1|email NULL"},
		"an update from NULL": {source: rowMap,
			message: `{"database":"d","table":"t","type":"update","data":{"id":1,"email":"x"},"old":{"email":null}}`,
			want:    "update d.t: id=1|email NULL -> id=1|email=x"},
		"a number above 2^63": {source: tests + "test_bignum",
			message: `{"database":"long_db","table":"test_long","type":"insert","data":{"id":1,"long_field":18446744073709551615}}`,
			want:    "insert long_db.test_long: none -> id=1|long_field=18446744073709551615"},
		"a DECIMAL keeps its digits, as Java writes them": {source: columns + "DecimalColumnDef.java; java.math.BigDecimal.toString",
			message: `{"database":"d","table":"t","type":"insert","data":{"a":10.50,"b":1.000E-7,"c":-12.5E-8,"e":-120E-1,"f":1E-31,"g":1.0E10}}`,
			want:    "insert d.t: none -> a=10.50|b=1.000E-7|c=-12.5E-8|e=-120E-1|f=1E-31|g=1.0E10"},
		"a BIT is a number": {source: columns + "BitColumnDef.java",
			message: `{"database":"d","table":"t","type":"insert","data":{"b":9223372036854775808}}`,
			want:    "insert d.t: none -> b=9223372036854775808"},
		"bytes are base64, which nothing tells from a text": {source: tests + "test_blob",
			message: `{"database":"blob_db","table":"test_blob","type":"insert","data":{"id":1,"blob_field":"AAECAw=="}}`,
			want:    "insert blob_db.test_blob: none -> id=1|blob_field=AAECAw=="},
		"a SET is an array": {source: tests + "test_set",
			message: `{"database":"set_db","table":"test_sets","type":"insert","data":{"id":1,"set_field":["bar","baz"],"none":[]}}`,
			want:    "insert set_db.test_sets: none -> id=1|set_field=bar,baz|none="},
		"JSON is nested": {source: tests + "test_json",
			message: `{"database":"test_json","table":"json","type":"insert","data":{"j":{"foo": "bar", "baz": [1, 2], "n": 123.4321},"k":[1, {"a": null}],"l":true,"i":0}}`,
			want:    `insert test_json.json: none -> j={"foo":"bar","baz":[1,2],"n":123.4321}|k=[1,{"a":null}]|l=true|i=0`},
		"times": {source: tests + "test_time, test_zero_created_at",
			message: `{"database":"timedb","table":"tt","type":"insert","data":{"t":"12:23:33.123456","dt":"2012-01-01 22:32:34.222222","ts":"2012-01-01 22:32:34.1234","zero":"0000-00-00 00:00:00"}}`,
			want: "insert timedb.tt: none -> t=12:23:33.123456|dt=2012-01-01 22:32:34.222222|ts=2012-01-01 " +
				"22:32:34.1234|zero=0000-00-00 00:00:00"},
		"a bootstrap begins":    {source: tests + "bootstrap-single-row", message: `{"database":"shard_1","table":"minimal","type":"bootstrap-start","data":{}}`},
		"a row of it":           {source: tests + "bootstrap-single-row", message: `{"database":"shard_1","table":"minimal","type":"bootstrap-insert","data":{"id":1}}`, want: "read shard_1.minimal: none -> id=1"},
		"and it ends":           {source: tests + "bootstrap-single-row", message: `{"database":"shard_1","table":"minimal","type":"bootstrap-complete","data":{}}`},
		"CREATE TABLE":          {source: format, message: `{"type":"table-create","database":"test","table":"e","def":{"database":"test","charset":"utf8mb4","table":"e","columns":[]},"ts":1477053126000,"sql":"create table test.e ( id int )"}`, want: "alter test.e"},
		"ALTER TABLE":           {source: format, message: `{"type":"table-alter","database":"test","table":"e","old":{"database":"test","table":"e"},"def":{"database":"test","table":"e"},"ts":1477053308000,"sql":"ALTER TABLE e ADD m DOUBLE"}`, want: "alter test.e"},
		"RENAME TABLE":          {source: format, message: `{"type":"table-alter","database":"test","table":"e","old":{"database":"test","table":"e"},"def":{"database":"other","table":"f"},"sql":"RENAME TABLE test.e TO other.f"}`, want: "alter test.e\nreplace other.f"},
		"EXCHANGE PARTITION":    {source: "zendesk/maxwell, src/main/java/com/zendesk/maxwell/schema/ddl/DDLMap.java", message: `{"type":"table-alter","database":"test","table":"e","old":{"database":"test","table":"e"},"def":{"database":"test","table":"e"},"sql":"ALTER TABLE e EXCHANGE PARTITION p WITH TABLE f"}`, want: "replace test.e\nreplace test.f"},
		"a new table of rows":   {source: format, message: `{"type":"table-create","database":"test","table":"e","def":{"database":"test","table":"e"},"sql":"CREATE TABLE e SELECT 1"}`, want: "replace test.e"},
		"RENAME, by its text":   {source: format, message: `{"type":"table-alter","database":"test","table":"e","sql":"RENAME TABLE e TO f"}`, want: "alter test.e\nreplace test.f"},
		"DDL without its text":  {source: format, message: `{"type":"table-alter","database":"test","table":"f","old":{"database":"test","table":"e"},"def":{"database":"test","table":"f"}}`, want: "replace . unread"},
		"a text that is none":   {source: format, message: `{"type":"table-alter","database":"test","table":"e","sql":{"private":1}}`, want: "replace . unread", fails: "envelope: Maxwell's message: sql: wrong type"},
		"DROP TABLE":            {source: format, message: `{"type":"table-drop","database":"test","table":"e","sql":"DROP TABLE e"}`, want: "alter test.e"},
		"DROP DATABASE":         {source: format, message: `{"type":"database-drop","database":"test","sql":"DROP DATABASE test"}`, want: "alter test."},
		"a table of nowhere":    {source: format, message: `{"type":"table-drop","table":"e","sql":"DROP TABLE e"}`, want: "alter ."},
		"encrypted":             {source: rowMap, message: `{"database":"d","table":"t","type":"insert","data":"private"}`, want: "replace d.t unread", fails: "envelope: Maxwell's message: data: the data is encrypted: Maxwell's encrypt must be none"},
		"no data":               {source: rowMap, message: `{"database":"d","table":"t","type":"insert"}`, want: "replace d.t unread", fails: "envelope: Maxwell's message: data: not a JSON object"},
		"no table":              {source: rowMap, message: `{"database":"d","type":"insert","data":{}}`, fails: "envelope: Maxwell's message: the message does not name its table"},
		"a new type":            {source: rowMap, message: `{"type":"private"}`, fails: "envelope: Maxwell's message: type: unknown value"},
		"a new type of a table": {source: rowMap, message: `{"type":"private","database":"d","table":"t"}`, want: "replace d.t unread", fails: "envelope: Maxwell's message: type: unknown value"},
		"an old that is none":   {source: rowMap, message: `{"database":"d","table":"t","type":"update","data":{"id":1},"old":["private"]}`, want: "replace d.t unread", fails: "envelope: Maxwell's message: old: not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) { q.check(t, Maxwell) })
	}
}

// ts is in seconds, and of DDL in milliseconds: docs/docs/dataformat.md of zendesk/maxwell.
func TestMaxwellTime(t *testing.T) {
	for ts, want := range map[string]time.Time{"1477053217": time.Unix(1477053217, 0),
		"1477053126000": time.Unix(1477053126, 0), "0": {}, "-1": {}, `"x"`: {}, "1e400": {}} {
		changes, err := Maxwell([]byte(`{"type":"table-drop","database":"d","table":"t","ts":` + ts + `}`))
		check(t, err)
		if got := changes[0].Time; !got.Equal(want) {
			t.Errorf("%s: %v, want %v", ts, got, want)
		}
	}
}

// What is no message of any of them is an error that shows nothing of it.
func TestMalformed(t *testing.T) {
	for _, message := range []string{"", "null", "{", "42", `"private"`, "[]", "{}", `{"private":1}`, `{"type":1}`,
		`{"type":"private"} {}`, `{"type":"private","type":"private"}`, "{\"type\":\"private\xff\"}",
		`{"type":"insert","database":{"private":1}}`, `{"schema":1,"payload":["private"]}`, strings.Repeat("[",
			100_000), `{"private":` + strings.Repeat("[", 100_000), strings.Repeat(" ", maxMessage) + "{}"} {
		for name, decode := range map[string]Decoder{"canal": Canal, "maxwell": Maxwell, "debezium": Debezium} {
			changes, err := decode([]byte(message))
			tombstone := name == "debezium" && (message == "" || message == "null")
			if (err == nil) != tombstone || len(changes) > 0 {
				t.Errorf("%s: %.40q: %v, %v", name, message, changes, err)
			}
			if err != nil && strings.Contains(err.Error(), "private") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	many := `{"type":"insert","database":"d","table":"t","data":{` + strings.TrimSuffix(strings.Repeat(`"%":1,`, 5000),
		",") + "}}"
	for i := range 5000 {
		many = strings.Replace(many, "%",
			strings.Repeat("c", 1+i%5)+string(rune('a'+i%26))+time.Duration(i).String(), 1)
	}
	if changes, err := Maxwell([]byte(many)); err == nil || told(changes) != "replace d.t unread" {
		t.Errorf("5000 columns: %v", err)
	}
}
