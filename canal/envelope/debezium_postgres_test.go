package envelope

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

const postgresDocs = "https://debezium.io/documentation/reference/stable/connectors/postgresql.html#"

// decodePostgres knows the identities of four tables.
var decodePostgres = DebeziumPostgres(map[event.Table][]string{{Schema: "s", Name: "t"}: {"ID"},
	{Schema: "s", Name: "whole"}: nil, {Schema: "s", Name: "two"}: {"id", "email"}, {Schema: "s", Name: "cases"}: {"id"}})

// published is a message about a table of PostgreSQL.
func published(table, op, before, after string) string {
	return fmt.Sprintf(
		`{"op":%q,"before":%s,"after":%s,"source":{"connector":"postgresql","db":"shop","schema":"s","table":%q,"lsn":7,"txId":1,"xmin":null}}`, op, before, after, table)
}

// The row before a change has the columns of the REPLICA IDENTITY. The others are made up.
func TestReplicaIdentity(t *testing.T) {
	const events = postgresDocs + "postgresql-replica-identity"
	for name, q := range map[string]quirk{
		"an insert":                         {message: published("t", "c", `null`, `{"id":1,"email":"a"}`), want: "insert s.t: none -> id=1|email=a"},
		"a row of a snapshot":               {message: published("t", "r", `null`, `{"id":1}`), want: "read s.t: none -> id=1"},
		"an update, DEFAULT":                {message: published("t", "u", `null`, `{"id":1,"email":"a"}`), want: "update s.t: id=1|email? -> id=1|email=a"},
		"a delete, DEFAULT":                 {message: published("t", "d", `{"id":1,"email":""}`, `null`), want: "delete s.t: id=1|email? -> none"},
		"a delete of 0, DEFAULT":            {message: published("t", "d", `{"id":0,"email":null}`, `null`), want: "delete s.t: id=0|email? -> none"},
		"a delete without its key":          {message: published("t", "d", `{"id":null,"email":"a"}`, `null`), want: "delete s.t: id?|email? -> none"},
		"a delete without the row before":   {message: published("t", "d", `null`, `null`), want: "delete s.t:  -> none"},
		"an update, two columns":            {message: published("two", "u", `{"id":1,"email":"a","n":null}`, `{"id":1,"email":"b","n":3}`), want: "update s.two: id=1|email=a|n? -> id=1|email=b|n=3"},
		"an update, FULL":                   {message: published("whole", "u", `{"id":1,"email":"","n":null}`, `{"id":1,"email":"b","n":3}`), want: "update s.whole: id=1|email=|n NULL -> id=1|email=b|n=3"},
		"an update, FULL no longer":         {message: published("whole", "u", `null`, `{"id":1,"email":"b"}`), want: "update s.whole:  -> id=1|email=b"},
		"an update of another table":        {message: published("other", "u", `{"id":1}`, `{"id":2}`), want: "update s.other:  -> id=2"},
		"a delete of another table":         {message: published("other", "d", `{"id":1}`, `null`), want: "delete s.other:  -> none"},
		"a large value in the identity":     {message: published("two", "u", `null`, `{"id":1,"email":"__debezium_unavailable_value"}`), want: "update s.two: id=1|email? -> id=1|email?"},
		"a name that differs in case":       {message: published("cases", "d", `{"ID":0,"id":1}`, `null`), want: "delete s.cases: ID?|id=1 -> none"},
		"two names that differ in case":     {message: published("t", "d", `{"id":1,"Id":0}`, `null`), want: "delete s.t: id?|Id? -> none"},
		"truncate":                          {message: published("t", "t", `null`, `null`), want: "truncate s.t"},
		"pg_logical_emit_message":           {message: `{"op":"m","source":{"connector":"postgresql","db":"shop","schema":"","table":""},"message":{"prefix":"p","content":"cHJpdmF0ZQ=="}}`},
		"a tombstone":                       {message: `null`},
		"a table without its schema":        {message: strings.Replace(published("t", "c", `null`, `{"id":1}`), `"schema":"s"`, `"schema":null`, 1), fails: "envelope: Debezium's message: the message does not name its table"},
		"the schema of another database":    {message: strings.Replace(published("t", "d", `{"id":1}`, `null`), "postgresql", "mysql", 1), want: "delete shop.t: id=1 -> none"},
		"a row that is none, and its table": {message: published("t", "c", `null`, `1`), want: "replace s.t unread", fails: "envelope: Debezium's message: after: not a JSON object"},
	} {
		q.source = events
		t.Run(name, func(t *testing.T) { q.check(t, decodePostgres) })
	}
	t.Run("without identities", func(t *testing.T) {
		quirk{source: events, message: published("t", "d", `{"id":1}`, `null`), want: "delete s.t:  -> none"}.check(t,
			Debezium)
	})
}

// A value that was not sent is that of the row before, if that has it.
func TestUnavailableInPostgres(t *testing.T) {
	row := func(kind, value string) string {
		return fmt.Sprintf(
			`{"schema":{"fields":[{"field":"before","fields":[{"field":"c",%[1]s}]},{"field":"after","fields":[{"field":"c",%[1]s}]}]},"payload":%[2]s}`, kind, published("whole", "u", `{"c":"b2xk"}`, `{"c":`+value+`}`))
	}
	const bytea = `"parameters":{"__debezium.source.column.type":"BYTEA"}`
	for name, c := range map[string]struct{ kind, value, want string }{
		"text":                 {`"type":"string"`, `"__debezium_unavailable_value"`, "b2xk"},
		"another text":         {`"type":"string"`, `"__debezium_unavailable_value "`, "__debezium_unavailable_value "},
		"json":                 {`"type":"string","name":"io.debezium.data.Json"`, `"__debezium_unavailable_value"`, "b2xk"},
		"bytea":                {`"type":"bytes",` + bytea, `"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="`, "old"},
		"bytea in base64":      {`"type":"string",` + bytea, `"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="`, "b2xk"},
		"bytea in base64-url":  {`"type":"string",` + bytea, `"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ"`, "b2xk"},
		"bytea in hex":         {`"type":"string",` + bytea, `"5f5f646562657a69756d5f756e617661696c61626c655f76616c7565"`, "b2xk"},
		"declared":             {`"type":"string","parameters":{"__debezium.unavailable.value.placeholder":"gone"}`, `"gone"`, "b2xk"},
		"declared bytes":       {`"type":"bytes","parameters":{"__debezium.unavailable.value.placeholder":"Z29uZQ=="}`, `"Z29uZQ=="`, "old"},
		"an array":             {`"type":"array"`, `["__debezium_unavailable_value"]`, ""},
		"an array of integers": {`"type":"array"`, `[95,95]`, ""},
		"hstore":               {`"type":"map"`, `{"__debezium_unavailable_value":"__debezium_unavailable_value"}`, ""},
	} {
		changes, err := decodePostgres([]byte(row(c.kind, c.value)))
		check(t, err)
		if v := changes[0].After.Over(changes[0].Before).Get("c"); v.Text() != c.want || v.Known() != (c.want != "") {
			t.Errorf("%s: %q, known %v", name, v.Text(), v.Known())
		}
	}
}

// Values of types that have no row in testdata/postgres, and those that depend on the settings.
func TestValuesOfPostgres(t *testing.T) {
	source := func(kind string) string {
		return `"parameters":{"__debezium.source.column.type":"` + kind +
			`","__debezium.source.column.length":"2","scale":"2"}`
	}
	const decimal, variable = `"type":"bytes","name":"org.apache.kafka.connect.data.Decimal",`,
		`"type":"struct","name":"io.debezium.data.VariableScaleDecimal",`
	for name, c := range map[string]struct {
		kind, value, want string
		exact             bool
	}{
		"int":                            {`"type":"int32"`, `7`, "7", true},
		"int without a schema":           {``, `7`, "7", false},
		"text without a type":            {`"type":"string"`, `"a"`, "a", false},
		"text":                           {`"type":"string",` + source("TEXT"), `"a"`, "a", true},
		"citext":                         {`"type":"string",` + source("CITEXT"), `"A"`, "A", true},
		"char(2), which is padded":       {`"type":"string",` + source("BPCHAR"), `"a "`, "a ", false},
		"char(2), whose padding is gone": {`"type":"string",` + source("BPCHAR"), `"a"`, "a", false},
		"char(2)":                        {`"type":"string",` + source("BPCHAR"), `"öa"`, "öa", true},
		"cidr":                           {`"type":"string",` + source("CIDR"), `"10.0.0.0/8"`, "10.0.0.0/8", false},
		"a domain":                       {`"type":"string",` + source("SHORT"), `"a"`, "a", false},
		"xml":                            {`"type":"string","name":"io.debezium.data.Xml",` + source("XML"), `"<a/>"`, "<a/>", false},
		"uuid":                           {`"type":"string","name":"io.debezium.data.Uuid"`, `"550e8400-e29b-41d4-a716-446655440000"`, "550e8400-e29b-41d4-a716-446655440000", true},
		"an enum":                        {`"type":"string","name":"io.debezium.data.Enum"`, `"sad"`, "sad", true},
		"bool without a type":            {`"type":"boolean"`, `true`, "true", false},
		"bit(1)":                         {`"type":"boolean",` + source("BIT"), `true`, "1", false},
		"bytea without a type":           {`"type":"bytes"`, `"AP8="`, "\x00\xff", false},
		"bytea in hex":                   {`"type":"string",` + source("BYTEA"), `"00ff"`, "00ff", false},
		"no base64":                      {`"type":"bytes",` + source("BYTEA"), `"?"`, "", false},
		"numeric":                        {decimal + source("NUMERIC"), `"/h3G"`, "-1234.50", true},
		"numeric without a type":         {decimal + `"parameters":{"scale":"2"}`, `"/h3G"`, "-1234.50", false},
		"numeric as a text":              {`"type":"string",` + source("NUMERIC"), `"NaN"`, "NaN", true},
		"numeric as a double":            {`"type":"double",` + source("NUMERIC"), `1.5`, "1.5", false},
		"numeric as a number":            {decimal + source("NUMERIC"), `1.50`, "1.50", true},
		"numeric with an exponent":       {decimal + source("NUMERIC"), `1E+3`, "1E+3", false},
		"money":                          {decimal + source("MONEY"), `"AJY="`, "1.50", false},
		"money as a text":                {`"type":"string",` + source("MONEY"), `"1.50"`, "1.50", false},
		"a scale that is none":           {decimal + `"parameters":{"scale":"-1"}`, `"AA=="`, "", false},
		"a scale that is too large":      {decimal + `"parameters":{"scale":"1001"}`, `"AA=="`, "", false},
		"digits that nobody sent":        {decimal + `"parameters":{"scale":"999"}`, `"AA=="`, "", false},
		"variable":                       {variable + source("NUMERIC"), `{"scale":3,"value":"AA=="}`, "0.000", true},
		"variable without a scale":       {variable + source("NUMERIC"), `{"value":"AA=="}`, "", false},
		"variable without a value":       {variable + source("NUMERIC"), `{"scale":3}`, "", false},
		"a float that is no number":      {`"type":"float"`, `"NaN"`, "NaN", false},
		"date":                           {`"type":"int32","name":"io.debezium.time.Date"`, `0`, "1970-01-01", false},
		"date, infinity":                 {`"type":"int32","name":"io.debezium.time.Date"`, `2147483647`, "", false},
		"timestamp, milliseconds":        {`"type":"int64","name":"io.debezium.time.Timestamp"`, `1529476623120`, "2018-06-20 06:37:03.12", false},
		"timestamp, nanoseconds":         {`"type":"int64","name":"io.debezium.time.NanoTimestamp"`, `1529476623000001000`, "2018-06-20 06:37:03.000001", false},
		"timestamp, infinity":            {`"type":"int64","name":"io.debezium.time.MicroTimestamp"`, `9223372036825200000`, "", false},
		"timestamptz that is none":       {`"type":"string","name":"io.debezium.time.ZonedTimestamp"`, `"private"`, "", false},
		"time, milliseconds":             {`"type":"int32","name":"io.debezium.time.Time"`, `10`, "00:00:00.01", false},
		"time, nanoseconds":              {`"type":"int64","name":"io.debezium.time.NanoTime"`, `86400000000000`, "24:00:00", false},
		"time that is none":              {`"type":"int64","name":"io.debezium.time.MicroTime"`, `86400000001`, "", false},
		"timetz":                         {`"type":"string","name":"io.debezium.time.ZonedTime"`, `"03:04:00Z"`, "03:04:00Z", false},
		"interval as a text":             {`"type":"string","name":"io.debezium.time.Interval"`, `"P1D"`, "P1D", false},
		"a point":                        {`"type":"struct","name":"io.debezium.data.geometry.Point"`, `{"x":1.0,"y":2.0}`, "", false},
		"another default":                {`"type":"string","optional":true,"default":"b",` + source("TEXT"), `"a"`, "a", true},
		"the default, or NULL":           {`"type":"string","optional":true,"default":"a",` + source("TEXT"), `"a"`, "a", false},
		"the default, not NULL":          {`"type":"string","optional":false,"default":"a",` + source("TEXT"), `"a"`, "a", true},
	} {
		if c.kind != "" {
			c.kind = "," + c.kind
		}
		message := fmt.Sprintf(`{"schema":{"fields":[{"field":"after","fields":[{"field":"c"%s}]}]},"payload":%s}`,
			c.kind, published("t", "c", `null`, `{"c":`+c.value+`}`))
		changes, err := decodePostgres([]byte(message))
		check(t, err)
		if v := changes[0].After.Get("c"); v.Text() != c.want || v.Exact() != c.exact || v.Known() != (c.want != "") {
			t.Errorf("%s: %q, exact %v, known %v", name, v.Text(), v.Exact(), v.Known())
		}
	}
}

// The files of testdata can be read with any part of the schema missing.
func TestPostgresWithoutASchema(t *testing.T) {
	for _, line := range lines(t, "../postgres/debezium") {
		var m struct{ Payload json.RawMessage }
		check(t, json.Unmarshal(line, &m))
		if _, err := decodePostgres(m.Payload); err != nil {
			t.Error(err)
		}
	}
}

// JsonConverter sends the default of a column instead of NULL, also from MySQL.
func TestDefaultInsteadOfNull(t *testing.T) {
	for message, exact := range map[string]bool{
		column(`"type":"string","optional":true,"default":"a"`, `"a"`):  false,
		column(`"type":"string","optional":true,"default":"b"`, `"a"`):  true,
		column(`"type":"string","optional":false,"default":"a"`, `"a"`): true,
	} {
		changes, err := Debezium([]byte(message))
		check(t, err)
		if v := changes[0].After.Get("c"); v.Exact() != exact || v.Text() != "a" {
			t.Errorf("%s: exact %v, %q", message, v.Exact(), v.Text())
		}
	}
}
