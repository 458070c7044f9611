package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

const flattened = "envelope: Debezium's message: it has no op and source: remove the transformation " +
	"ExtractNewRecordState, which drops the row's old values"

// TestFlattenedRows: a row without op and source is refused, for any names of its columns.
func TestFlattenedRows(t *testing.T) {
	for _, message := range []string{
		`{"id":7,"payload":null}`, `{"id":7,"Payload":null}`, `{"id":7,"payload":{"ts_ms":5}}`,
		`{"id":7,"payload":"private"}`, `{"payload":null}`,
		`{"payload":{"op":"c","source":{"db":"d","table":"t"},"after":{}}}`,
		`{"id":7,"schema":null,"payload":null}`, `{"Schema":null,"Payload":null}`,
		`{"id":7,"status":1}`, `{"id":7,"status":"shipped","event_count":2}`, `{"status":"END","event_count":2}`,
		`{"id":7,"ddl":"SELECT 1"}`, `{"id":7,"ddl":1}`, `{"id":7,"databaseName":1,"tableChanges":null}`,
		`{"op":1}`, `{"op":"c"}`, `{"source":"private"}`, `{"source":{"db":1}}`,
		`{"OP":"c","source":{"db":"d","table":"t"},"after":{}}`,
		`{"schema":null,"payload":{"id":7,"status":1}}`,
	} {
		changes, err := Debezium([]byte(message))
		if err == nil || strings.Replace(err.Error(), "payload: ", "", 1) != flattened || len(changes) > 0 {
			t.Errorf("%s: %v, %v", message, changes, err)
		}
	}
}

// TestNamesOfMembers: names are compared exactly, and a message with a repeated name is refused,
// because it is unclear which member counts. encoding/json ignores case and takes the last one.
func TestNamesOfMembers(t *testing.T) {
	const row = `"database":"d","table":"t","op":"c","source":{"db":"d","table":"t"}`
	for name, q := range map[string]struct {
		decode               Decoder
		message, want, fails string
	}{
		"canal, case":             {Canal, `{"TABLE":"u","DATA":[],"Type":"DELETE",` + row + `,"type":"INSERT","data":[{"id":"1"}],"Database":"e"}`, "insert d.t: none -> id=1", ""},
		"canal, folds":            {Canal, `{"ſql":"ALTER TABLE u ADD a INT",` + row + `,"type":"ALTER","sql":"ALTER TABLE t ADD a INT"}`, "alter d.t", ""},
		"canal, twice":            {Canal, `{` + row + `,"type":"INSERT","data":[{"id":"1"}],"data":[{"id":"2"}]}`, "", "a name appears twice"},
		"canal, escaped":          {Canal, `{` + row + `,"type":"INSERT","data":[{"id":"1"}],"dat\u0061":[{"id":"2"}]}`, "", "a name appears twice"},
		"canal, a type twice":     {Canal, `{` + row + `,"type":"INSERT","data":[{"id":"1"}],"mysqlType":{"id":"int","id":"float"}}`, "replace d.t unread", "mysqlType: a name appears twice"},
		"canal, types in case":    {Canal, `{` + row + `,"type":"INSERT","data":[{"id":"AA"}],"mysqlType":{"id":"int","ID":"enum('x')"}}`, "insert d.t: none -> id=AA", ""},
		"Maxwell, case":           {Maxwell, `{"Data":{"id":2},"Old":{"id":3},` + row + `,"type":"insert","data":{"id":1},"TYPE":"delete"}`, "insert d.t: none -> id=1", ""},
		"Maxwell, twice":          {Maxwell, `{` + row + `,"type":"insert","data":{"id":1},"table":"u"}`, "", "a name appears twice"},
		"Maxwell, twice, unknown": {Maxwell, `{` + row + `,"type":"insert","data":{"id":1},"x":1,"x":1}`, "", "a name appears twice"},
		"Debezium, case":          {Debezium, `{"After":{"id":2},"Source":{"db":"e"},` + row + `,"after":{"id":1},"OP":"d"}`, "insert d.t: none -> id=1", ""},
		"Debezium, twice":         {Debezium, `{` + row + `,"after":{"id":1},"after":{"id":2}}`, "", "a name appears twice"},
		"Debezium, in source":     {Debezium, `{"op":"c","source":{"db":"d","table":"t","table":"u"},"after":{"id":1}}`, "", "source: a name appears twice"},
		"Debezium, source, case":  {Debezium, `{"op":"c","source":{"db":"d","table":"t","Table":"u"},"after":{"id":1}}`, "insert d.t: none -> id=1", ""},
		"Debezium, wrapped":       {Debezium, `{"schema":null,"payload":{` + row + `,"after":{"id":1},"op":"d"}}`, "", "payload: a name appears twice"},
		"Debezium, schema, case":  {Debezium, `{"schema":{"fields":[{"field":"after","fields":[{"field":"id","type":"string","TYPE":"bytes"}]}]},"payload":{` + row + `,"after":{"id":"AA=="}}}`, "insert d.t: none -> id=AA==", ""},
	} {
		changes, err := q.decode([]byte(q.message))
		text := ""
		if err != nil {
			_, text, _ = strings.Cut(err.Error(), "message: ")
		}
		if got := told(changes); got != q.want || text != q.fails {
			t.Errorf("%s: %q, error %q", name, got, text)
		}
	}
}

// TestSchemaMemory: a message that its sender has filled with useless parts of a schema costs no
// more memory than its length and the columns of one table justify.
func TestSchemaMemory(t *testing.T) {
	const n = 1 << 16
	row := func(fields string) string {
		return `{"schema":{"fields":[` + fields +
			`]},"payload":{"op":"u","source":{"db":"d","table":"t"},"before":{"c":1},"after":{"c":1}}}`
	}
	var names strings.Builder
	for i := range n {
		fmt.Fprintf(&names, `{"field":"c%d"},`, i)
	}
	repeated := func(s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for name, message := range map[string]string{
		"fields":        row(repeated(`{}`)),
		"other sides":   row(repeated(`{"field":"source","fields":[{}]}`)),
		"columns":       row(`{"field":"after","fields":[` + repeated(`{}`) + `]}`),
		"named columns": row(`{"field":"after","fields":[` + repeated(`{"field":"c","type":"int32"}`) + `]}`),
		"other columns": row(`{"field":"after","fields":[{"field":"c","type":"int32"},` + names.String() + `{}]}`),
		"both sides":    row(`{"field":"before","fields":[` + repeated(`1`) + `]},` + repeated(`{"field":"after","fields":[{"field":"c"}]}`)),
		"parameters":    row(`{"field":"after","fields":[{"field":"c","parameters":{` + repeated(`"":""`) + `}}]}`),
		"strings":       row(`{"field":"after","fields":[{"field":"c","type":"` + strings.Repeat("x", n) + `"}]}`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		changes, err := Debezium([]byte(message))
		runtime.ReadMemStats(&after)
		if err != nil || told(changes) != "update d.t: c=1 -> c=1" {
			t.Errorf("%s: %v, %v", name, told(changes), err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > uint64(4*len(message)+4<<20) {
			t.Errorf("%s: %d bytes for a message of %d", name, used, len(message))
		}
	}
}

// FuzzObject compares the members of an object with those that encoding/json finds.
func FuzzObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` { "a" : [ { } , "]\"" ] , "b\u0062" : "\\" } `,
		`{"":{"":""},"é":-1e5,"x":null}`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := open(message)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(message))
		_, _ = d.Token()
		for _, m := range got {
			var value json.RawMessage
			name, _ := d.Token()
			if d.Decode(&value) != nil || name != m.name || !bytes.Equal(value, m.value) {
				t.Fatalf("%q: %q, not %q: %q", m.name, m.value, name, value)
			}
		}
		if d.More() {
			t.Fatalf("%d members, not all", len(got))
		}
	})
}
