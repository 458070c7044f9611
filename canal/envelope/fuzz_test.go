package envelope

import (
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// fuzz has a decoder read anything: what it finds are changes that a Consumer can do, not more of
// them than the message can have, and what it says of an error shows nothing of it.
func fuzz(f *testing.F, decode Decoder, seeds ...string) {
	// short ones: what is found in long ones is made shorter for a minute each
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		changes, err := decode(message)
		if len(changes) > 1+len(message) {
			t.Errorf("%d changes of %d bytes", len(changes), len(message))
		}
		for _, c := range changes {
			whole := c.Kind == event.Alter || c.Kind == event.Truncate || c.Kind == event.Replace
			switch {
			case c.Kind < event.Insert || c.Kind > event.Replace:
				t.Errorf("%v", c)
			case !whole && (c.Schema == "" || c.Table == ""), whole && c.Schema == "" && c.Table != "":
				t.Errorf("of what table: %v", c)
			case whole && (c.Before.Exists() || c.After.Exists()):
				t.Errorf("a row of a whole table: %v", c)
			case err != nil && (c.Kind != event.Replace || c.Unread == nil):
				t.Errorf("with %v: %v", err, c)
			case c.Unread != nil && (c.Kind != event.Replace || len(c.Unread.Error()) > 300):
				t.Errorf("%v: %v", c, c.Unread)
			case c.Kind == event.Truncate && c.Table == "":
				t.Errorf("%v: it says that all tables are empty", c)
			case c.Before.Exists() != (c.Kind == event.Update || c.Kind == event.Delete),
				c.After.Exists() != (c.Kind == event.Insert || c.Kind == event.Update || c.Kind == event.Read):
				t.Errorf("%v: %v, %v", c, c.Before, c.After)
			}
			for _, r := range []event.Row{c.Before, c.After} {
				for _, name := range r.Columns().Names() {
					if v := r.Get(name); len(v.Text()) > 8*len(message)+64 {
						t.Errorf("a value of %d bytes of a message of %d", len(v.Text()), len(message))
					}
				}
			}
		}
		if err != nil && (len(err.Error()) > 300 || !strings.HasPrefix(err.Error(), "envelope: ")) {
			t.Error(err)
		}
	})
}

func FuzzCanal(f *testing.F) {
	fuzz(f, Canal,
		`{"data":[{"a":"4.2","b":"\u0001","c":"0","d":"42"}],"mysqlType":{"a":"decimal(8,2) unsigned zerofill","b":"binary(9)","c":"year(2)","d":"int(6) unsigned zerofill"},"database":"d","table":"t","type":"INSERT"}`,
		`{"data":[{"a":"2","b":"5","c":"\u0000ÿ","d":"1.5","n":null}],"mysqlType":{"a":"enum('x','y')","b":"set('a','b','c')","c":"blob","d":"float"},"database":"d","table":"t","type":"INSERT","es":1}`,
		`{"data":[{"id":"1","a":"x"},{"id":"2","a":"y"}],"old":[{"a":"w"}],"database":"d","table":"t","type":"UPDATE","mysqlType":{"a":"enum('x','it''s')","id":"set('a')"}}`,
		`{"data":null,"database":"d","table":"b","type":"RENAME","isDdl":true,"sql":"RENAME TABLE a TO b"}`,
		`{"data":null,"database":"","type":"QUERY","isDdl":true,"sql":"drop database d"}`,
		`{"database":"d","table":"A","type":"ALTER","isDdl":true,"sql":"alter table A exchange partition p with table e.B"}`)
}

func FuzzMaxwell(f *testing.F) {
	fuzz(f, Maxwell,
		`{"database":"d","table":"t","type":"insert","ts":1,"data":{"a":1.000E-7,"s":["a","b"],"j":{"x":[1,{}]},"l":true,"n":null}}`,
		`{"database":"d","table":"t","type":"update","data":{"id":1},"old":{"email":"x"}}`,
		`{"type":"table-alter","database":"test","table":"e","old":{"database":"test","table":"e"},"def":{"database":"other","table":"f"}}`,
		`{"database":"shard_1","table":"minimal","type":"bootstrap-insert","data":{"id":1}}`)
}

func FuzzDebezium(f *testing.F) {
	fuzz(f, Debezium,
		column(`"type":"string","parameters":{"__debezium.source.column.type":"DECIMAL ZEROFILL","__debezium.source.column.length":"8"}`, `"4.20"`),
		column(`"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}`, `"/h3G"`),
		column(`"type":"int64","name":"io.debezium.time.MicroTime"`, `-3020399000001`),
		column(`"type":"int64","name":"io.debezium.time.NanoTimestamp"`, `1529476623000001000`),
		column(`"type":"string","name":"io.debezium.time.ZonedTimestamp","parameters":{"__debezium.source.column.length":"6"}`, `"2018-06-20T13:37:03.12Z"`),
		`{"source":{},"databaseName":"d","ddl":"RENAME TABLE a TO e.b","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\",\"e\".\"b\""}]}`,
		`{"op":"u","source":{"db":"d","table":"t","ts_ms":1},"before":{"id":1,"n":null},"after":{"id":1,"n":"x"}}`,
		`{"op":"t","source":{"db":"d","table":"t"},"OP":"c"}`, `{"id":7,"payload":{"ts_ms":5}}`, `{"ts_ms":1}`,
		`{"schema":null,"payload":null}`)
}

func FuzzDebeziumPostgres(f *testing.F) {
	c := func(kind, value string) string {
		return `{"schema":{"fields":[{"field":"after","fields":[{"field":"c",` + kind + `}]}]},"payload":` +
			published("t", "c", "null", `{"c":`+value+`}`) + `}`
	}
	fuzz(f, decodePostgres,
		published("t", "u", `null`, `{"id":1,"email":"a"}`), published("whole", "d",
			`{"id":1,"email":"__debezium_unavailable_value"}`, `null`), published("two", "t", `null`, `null`),
		`{"op":"m","source":{"connector":"postgresql","db":"shop","schema":"","table":""},"message":{"prefix":"p","content":"cHJpdmF0ZQ=="}}`,
		c(`"type":"struct","name":"io.debezium.data.VariableScaleDecimal","parameters":{"__debezium.source.column.type":"NUMERIC"}`, `{"scale":70,"value":"AP//"}`),
		c(`"type":"bytes","optional":true,"default":"AA==","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}`, `"AA=="`),
		c(`"type":"string","parameters":{"__debezium.source.column.type":"BPCHAR","__debezium.source.column.length":"2"}`, `"ab"`),
		c(`"type":"int64","name":"io.debezium.time.NanoTime"`, `86400000000000`),
		c(`"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"2018-06-20T13:37:03.12+02:00"`),
		c(`"type":"string","parameters":{"__debezium.unavailable.value.placeholder":"gone"}`,
			`"gone"`), c(`"type":"array"`, `["a",null]`))
}
