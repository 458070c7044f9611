package envelope

import (
	"fmt"
	"testing"
)

// column is a message of Debezium about the insert of a row with a single column.
func column(schema, value string) string {
	return fmt.Sprintf(
		`{"schema":{"type":"struct","fields":[{"type":"struct","field":"after","fields":[{"field":"c",%s}]}]},"payload":{"op":"c","before":null,"after":{"c":%s},"source":{"db":"d","table":"t"}}}`, schema, value)
}

func TestDebezium(t *testing.T) {
	const (
		page      = "https://debezium.io/documentation/reference/stable/connectors/mysql.html#"
		events    = page + "mysql-events"
		smt       = "https://debezium.io/documentation/reference/stable/transformations/event-flattening.html"
		converter = "apache/kafka, connect/json/src/main/java/org/apache/kafka/connect/json/JsonConverter.java"
	)
	for name, q := range map[string]quirk{
		"create, without a schema": {source: events,
			message: `{"op":"c","ts_ms":1465491411815,"before":null,"after":{"id":1004,"first_name":"Anne"},"source":{"connector":"mysql","ts_ms":0,"snapshot":false,"db":"inventory","table":"customers","query":"private"}}`,
			want:    "insert inventory.customers: none -> id=1004|first_name=Anne"},
		"update, wrapped": {source: events,
			message: `{"schema":null,"payload":{"before":{"id":1,"n":"Anne"},"after":{"id":1,"n":"Anne Marie"},"source":{"db":"d","table":"t"},"op":"u"}}`,
			want:    "update d.t: id=1|n=Anne -> id=1|n=Anne Marie"},
		"delete":                         {source: events, message: `{"before":{"id":1},"after":null,"source":{"db":"d","table":"t"},"op":"d"}`, want: "delete d.t: id=1 -> none"},
		"a row of a snapshot":            {source: page + "mysql-snapshots", message: `{"before":null,"after":{"id":1},"source":{"db":"d","table":"t","snapshot":"first"},"op":"r"}`, want: "read d.t: none -> id=1"},
		"truncate":                       {source: page + "mysql-truncate-events", message: `{"source":{"db":"d","table":"t"},"op":"t","ts_ms":1465581029523}`, want: "truncate d.t"},
		"a message that is no row":       {source: events, message: `{"source":{"db":"d","table":""},"op":"m","message":{"prefix":"p","content":"cHJpdmF0ZQ=="}}`},
		"a tombstone":                    {source: page + "mysql-tombstone-events", message: `null`},
		"a tombstone without a value":    {source: page + "mysql-tombstone-events", message: ``},
		"a tombstone, wrapped":           {source: converter, message: `{"schema":null,"payload":null}`},
		"an update without what was":     {source: events, message: `{"before":null,"after":{"id":1},"source":{"db":"d","table":"t"},"op":"u"}`, want: "update d.t:  -> id=1"},
		"a delete without what was":      {source: events, message: `{"before":null,"source":{"db":"d","table":"t"},"op":"d"}`, want: "delete d.t:  -> none"},
		"a heartbeat":                    {source: page + "mysql-property-heartbeat-interval-ms", message: `{"schema":{},"payload":{"ts_ms":1465581029523}}`},
		"the end of a transaction":       {source: page + "mysql-transaction-metadata", message: `{"status":"END","id":"0e4d5dcd:10","ts_ms":1486500577691,"event_count":2,"data_collections":[{"data_collection":"s1.a","event_count":1}]}`},
		"its beginning":                  {source: page + "mysql-transaction-metadata", message: `{"status":"BEGIN","id":"0e4d5dcd:10","ts_ms":1486500577125,"event_count":null,"data_collections":null}`},
		"DDL":                            {source: page + "mysql-schema-change-topic", message: `{"source":{"ts_ms":1651535750218,"db":"inventory","table":"customers"},"databaseName":"inventory","schemaName":null,"ddl":"ALTER TABLE customers ADD middle_name varchar(255)","tableChanges":[{"type":"ALTER","id":"\"inventory\".\"customers\"","table":{"columns":[]}}]}`, want: "alter inventory.customers"},
		"RENAME":                         {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"RENAME TABLE a TO e.b","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\",\"e\".\"b\""}]}`, want: "alter .\nreplace e.b"},
		"several statements":             {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"ALTER TABLE a ADD c INT; TRUNCATE TABLE b","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\""}]}`, want: "replace . unread"},
		"RENAME in a schema":             {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"RENAME TABLE a TO b","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\",\"d\".\"b\""}]}`, want: "alter d.a\nreplace d.b"},
		"RENAME, without its text":       {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\",\"e\".\"b\""}]}`, want: "replace . unread"},
		"EXCHANGE PARTITION":             {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b","tableChanges":[{"type":"ALTER","id":"\"d\".\"a\""}]}`, want: "replace d.a\nreplace d.b"},
		"TRUNCATE, as DDL":               {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"TRUNCATE TABLE a","tableChanges":[]}`, want: "truncate d.a"},
		"a view":                         {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"CREATE VIEW v AS SELECT 1","tableChanges":[]}`},
		"a text that is none":            {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":["private"]}`, want: "replace . unread", fails: "envelope: Debezium's message: ddl: wrong type"},
		"one that names a table":         {source: page + "mysql-schema-change-topic", message: `{"source":{"db":"shop","table":"a"},"databaseName":"shop","ddl":["private"]}`, want: "replace . unread", fails: "envelope: Debezium's message: ddl: wrong type"},
		"a source that is none":          {source: page + "mysql-schema-change-topic", message: `{"source":"private","databaseName":"d","ddl":"DROP TABLE a"}`, want: "replace . unread", fails: "envelope: Debezium's message: source: wrong type"},
		"an op that is none":             {source: events, message: `{"op":1,"source":{"db":"d","table":"t"}}`, want: "replace d.t unread", fails: "envelope: Debezium's message: op: wrong type"},
		"DROP DATABASE":                  {source: page + "mysql-schema-change-topic", message: `{"source":{},"databaseName":"d","ddl":"DROP DATABASE d","tableChanges":[]}`, want: "alter d."},
		"unwrapped":                      {source: smt, message: `{"id":1,"name":"private","__deleted":"false","__op":"u","__table":"t"}`, fails: "envelope: Debezium's message: it has no op and source: remove the transformation ExtractNewRecordState, which drops the row's old values"},
		"a new op":                       {source: events, message: `{"op":"x","source":{"db":"d","table":"t"}}`, want: "replace d.t unread", fails: "envelope: Debezium's message: op: unknown value"},
		"no table":                       {source: events, message: `{"op":"c","source":{"db":"d"},"after":{}}`, fails: "envelope: Debezium's message: the message does not name its table"},
		"a row that is none":             {source: events, message: `{"op":"c","source":{"db":"d","table":"t"},"after":["private"]}`, want: "replace d.t unread", fails: "envelope: Debezium's message: after: not a JSON object"},
		"without a schema, as they come": {source: page + "mysql-data-types", message: `{"op":"c","source":{"db":"d","table":"t"},"after":{"date":20779,"decimal":"/h3G","big":18446744073709551615,"bool":true,"geo":{"wkb":"AA==","srid":null},"n":null,"un":"__debezium_unavailable_value"}}`, want: "insert d.t: none -> date=20779|decimal=/h3G|big=18446744073709551615|bool=1|geo?|n NULL|un?"},
	} {
		t.Run(name, func(t *testing.T) { q.check(t, Debezium) })
	}
	const source = `"__debezium.source.column.`
	for name, c := range map[string]struct{ source, schema, value, want string }{
		"int32":                     {page + "mysql-basic-types", `"type":"int32"`, `-7`, "c=-7"},
		"int64 exactly":             {page + "mysql-basic-types", `"type":"int64"`, `9007199254740993`, "c=9007199254740993"},
		"BIGINT UNSIGNED as long":   {page + "mysql-property-bigint-unsigned-handling-mode", `"type":"int64","parameters":{` + source + `type":"BIGINT UNSIGNED"}`, `-1`, "c=18446744073709551615"},
		"BIGINT UNSIGNED precise":   {page + "mysql-property-bigint-unsigned-handling-mode", `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"0"}`, `"AP//////////"`, "c=18446744073709551615"},
		"DECIMAL":                   {page + "mysql-decimal-types", `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}`, `"/h3G"`, "c=-1234.50"},
		"DECIMAL below one":         {page + "mysql-decimal-types", `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"3"}`, `"Bw=="`, "c=0.007"},
		"DECIMAL zero":              {page + "mysql-decimal-types", `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"1"}`, `"AA=="`, "c=0.0"},
		"DECIMAL without a scale":   {page + "mysql-decimal-types", `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal"`, `"AA=="`, "c?"},
		"DECIMAL as a string":       {page + "mysql-property-decimal-handling-mode", `"type":"string"`, `"-1234.50"`, "c=-1234.50"},
		"decimal.format=NUMERIC":    {converter, `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"7"}`, `0.0000010`, "c=0.0000010"},
		"FLOAT":                     {page + "mysql-basic-types", `"type":"float"`, `1.0E10`, "c=1e+10"},
		"DOUBLE":                    {page + "mysql-basic-types", `"type":"double"`, `5.0`, "c=5"},
		"BIT(1)":                    {page + "mysql-basic-types", `"type":"boolean"`, `false`, "c=0"},
		"BIT(9), little-endian":     {page + "mysql-basic-types", `"type":"bytes","name":"io.debezium.data.Bits"`, `"AQE="`, "c=257"},
		"BIT of more than 64":       {page + "mysql-basic-types", `"type":"bytes","name":"io.debezium.data.Bits"`, `"AQEBAQEBAQEB"`, "c?"},
		"BLOB":                      {page + "mysql-property-binary-handling-mode", `"type":"bytes"`, `"AP9B"`, "c=\x00\xffA"},
		"no base64":                 {converter, `"type":"bytes"`, `"private"`, "c?"},
		"unavailable":               {page + "mysql-property-unavailable-value-placeholder", `"type":"string"`, `"__debezium_unavailable_value"`, "c?"},
		"unavailable bytes":         {page + "mysql-property-unavailable-value-placeholder", `"type":"bytes"`, `"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="`, "c?"},
		"ENUM":                      {page + "mysql-basic-types", `"type":"string","name":"io.debezium.data.Enum","parameters":{"allowed":"a,b"}`, `"b"`, "c=b"},
		"SET":                       {page + "mysql-basic-types", `"type":"string","name":"io.debezium.data.EnumSet"`, `"a,b"`, "c=a,b"},
		"YEAR":                      {page + "mysql-basic-types", `"type":"int32","name":"io.debezium.time.Year"`, `2026`, "c=2026"},
		"DATE":                      {page + "mysql-temporal-types", `"type":"int32","name":"io.debezium.time.Date"`, `-1`, "c=1969-12-31"},
		"DATE of Kafka Connect":     {page + "mysql-temporal-types", `"type":"int32","name":"org.apache.kafka.connect.data.Date"`, `20779`, "c=2026-11-22"},
		"DATE that is none":         {page + "mysql-temporal-types", `"type":"int32","name":"io.debezium.time.Date"`, `9223372036854775807`, "c?"},
		"DATETIME":                  {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.Timestamp"`, `1529476623000`, "c=2018-06-20 06:37:03"},
		"DATETIME(3), not known":    {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.Timestamp"`, `1529476623120`, "c=2018-06-20 06:37:03.120"},
		"DATETIME(2)":               {page + "mysql-property-column-propagate-source-type", `"type":"int64","name":"io.debezium.time.Timestamp","parameters":{` + source + `length":"2"}`, `1529476623120`, "c=2018-06-20 06:37:03.12"},
		"DATETIME(3) without any":   {page + "mysql-property-column-propagate-source-type", `"type":"int64","name":"io.debezium.time.Timestamp","parameters":{` + source + `length":"3"}`, `1529476623000`, "c=2018-06-20 06:37:03.000"},
		"DATETIME before 1970":      {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.Timestamp"`, `-1`, "c=1969-12-31 23:59:59.999"},
		"DATETIME of year 10,000":   {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.Timestamp"`, `253402300800000`, "c?"},
		"DATETIME(6)":               {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.MicroTimestamp"`, `1529476623000001`, "c=2018-06-20 06:37:03.000001"},
		"DATETIME, nanoseconds":     {"debezium/debezium, debezium-core/src/main/java/io/debezium/time/NanoTimestamp.java", `"type":"int64","name":"io.debezium.time.NanoTimestamp"`, `1529476623000001000`, "c=2018-06-20 06:37:03.000001"},
		"DATETIME, isostring":       {"debezium/debezium, debezium-core/src/main/java/io/debezium/time/IsoTimestamp.java", `"type":"string","name":"io.debezium.time.IsoTimestamp"`, `"2018-06-20T06:37:03Z"`, "c=2018-06-20 06:37:03"},
		"TIMESTAMP":                 {page + "mysql-temporal-types", `"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"2018-06-20T13:37:03Z"`, "c=2018-06-20 13:37:03"},
		"TIMESTAMP elsewhere":       {page + "mysql-temporal-types", `"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"2018-06-20T13:37:03.12+02:00"`, "c=2018-06-20 11:37:03.12"},
		"TIMESTAMP(6)":              {page + "mysql-property-column-propagate-source-type", `"type":"string","name":"io.debezium.time.ZonedTimestamp","parameters":{` + source + `length":"6"}`, `"2018-06-20T13:37:03.12Z"`, "c=2018-06-20 13:37:03.120000"},
		"TIMESTAMP that is none":    {page + "mysql-temporal-types", `"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"private"`, "c?"},
		"TIME":                      {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.MicroTime"`, `45296000000`, "c=12:34:56"},
		"TIME(6), below zero":       {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.MicroTime"`, `-3020399000001`, "c=-838:59:59.000001"},
		"TIME of Kafka Connect":     {page + "mysql-temporal-types", `"type":"int32","name":"org.apache.kafka.connect.data.Time"`, `1`, "c=00:00:00.001"},
		"TIME, nanoseconds":         {"debezium/debezium, debezium-core/src/main/java/io/debezium/time/NanoTime.java", `"type":"int64","name":"io.debezium.time.NanoTime"`, `1000000000`, "c=00:00:01"},
		"TIME that is none":         {page + "mysql-temporal-types", `"type":"int64","name":"io.debezium.time.MicroTime"`, `9223372036854775807`, "c?"},
		"JSON":                      {page + "mysql-basic-types", `"type":"string","name":"io.debezium.data.Json"`, `"{\"a\":1}"`, `c={"a":1}`},
		"VECTOR, which has no text": {page + "mysql-vector-types", `"type":"array","name":"io.debezium.data.FloatVector"`, `[1.5]`, "c?"},
	} {
		t.Run(name, func(t *testing.T) {
			quirk{source: c.source, message: column(c.schema, c.value), want: "insert d.t: none -> " + c.want}.check(t,
				Debezium)
		})
	}
}
