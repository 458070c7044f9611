package envelope

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// postgresTexts are the types whose texts Go programs have as Debezium sends them, by their names
// in upper case. Without column.propagate.source.type, a text may have a type whose text depends on
// the driver, such as inet. Pglogical has the same list.
var postgresTexts = map[string]bool{"TEXT": true, "VARCHAR": true, "NAME": true, "CITEXT": true}

// ofPostgres returns the value of a column of PostgreSQL, with the text that package pglogical has
// of it. It is exact only if the type is known, and the text is that of Go programs.
func (f field) ofPostgres(raw json.RawMessage) event.Value {
	switch kindOf(raw) {
	case 'n':
		return event.Null()
	case '{':
		if f.name == "io.debezium.data.VariableScaleDecimal" {
			return f.variableScale(raw)
		}
		return event.Value{} // hstore and geometry
	case '[': // arrays
		return event.Value{}
	case 't', 'f':
		return f.postgresBool(string(raw))
	case '"':
		s, err := text(raw)
		if err != nil {
			return event.Value{}
		}
		return f.postgresText(s)
	}
	return f.postgresNumber(string(raw))
}

// sure returns the value of a text, which is exact if the column has that type in the database.
func (f field) sure(source, s string) event.Value {
	if f.source == source {
		return event.TextValue(s)
	}
	return event.Inexact(s)
}

// postgresBool reads a BOOL, or a BIT(1), which clients show as a digit.
func (f field) postgresBool(s string) event.Value {
	if f.source == "BIT" || f.source == "VARBIT" {
		return event.Inexact(map[string]string{"true": "1", "false": "0"}[s])
	}
	return f.sure("BOOL", s)
}

func (f field) postgresText(s string) event.Value {
	if f.omits(s) {
		return event.Omitted()
	}
	if f.kind == "bytes" {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return event.Value{}
		}
		return f.postgresBytes(b)
	}
	switch f.name {
	case "io.debezium.data.Uuid", "io.debezium.data.Enum":
		return event.TextValue(s)
	case "io.debezium.time.ZonedTimestamp":
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return event.Value{}
		}
		return postgresTime(t, "2006-01-02 15:04:05.999999+00")
	case "":
	default: // JSON, XML, intervals and others
		return event.Inexact(s)
	}
	switch {
	case f.kind != "string":
		return event.Inexact(s)
	case f.source == "BYTEA": // binary.handling.mode is hex, base64 or base64-url-safe
		if encodes(s) {
			return event.Omitted()
		}
		return event.Inexact(s)
	case f.source == "BPCHAR" && f.length == strconv.Itoa(utf8.RuneCountInString(s)) && !strings.HasSuffix(s, " "):
		return event.TextValue(s) // it is not padded, so programs have nothing to remove
	case postgresTexts[f.source]:
		return event.TextValue(s)
	}
	return f.sure("NUMERIC", s) // decimal.handling.mode=string
}

// encodes reports whether a text is the placeholder in an encoding of binary.handling.mode.
func encodes(s string) bool {
	return s == hex.EncodeToString([]byte(unavailable)) ||
		strings.TrimRight(s, "=") == base64.RawStdEncoding.EncodeToString([]byte(unavailable)) // it has no + and no /
}

func (f field) postgresBytes(b []byte) event.Value {
	switch {
	case f.name == "org.apache.kafka.connect.data.Decimal":
		scale, err := strconv.ParseInt(f.scale, 10, 32)
		return f.numeric(b, scale, err == nil)
	case string(b) == unavailable:
		return event.Omitted()
	case f.name != "": // bits
		return event.Value{}
	case f.source == "BYTEA":
		return valueOf(b, true)
	}
	return event.Inexact(string(b))
}

// numeric returns the value of a NUMERIC. A MONEY looks like one, and clients show it with its
// currency. Numbers beyond what NUMERIC can declare are unknown.
func (f field) numeric(b []byte, scale int64, ok bool) event.Value {
	if !ok || scale < 0 || scale > 1000 || len(b) > 512 || scale > 64+8*int64(len(b)) {
		return event.Value{}
	}
	return f.sure("NUMERIC", decimal(b, int(scale)))
}

// variableScale returns the value of a NUMERIC that was declared without a scale.
func (f field) variableScale(raw []byte) event.Value {
	s, err := text(memberOf(raw, "value"))
	if err != nil {
		return event.Value{}
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return event.Value{}
	}
	scale, err := strconv.ParseInt(string(memberOf(raw, "scale")), 10, 32)
	return f.numeric(b, scale, err == nil)
}

func (f field) postgresNumber(s string) event.Value {
	if v, ok := f.float(s); ok {
		return v
	}
	if f.kind == "bytes" { // decimal.format=NUMERIC
		if strings.ContainsAny(s, "eE") {
			return event.Inexact(s)
		}
		return f.sure("NUMERIC", s)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return event.Inexact(s)
	}
	switch f.name {
	case "":
		if strings.HasPrefix(f.kind, "int") {
			return valueOf(n, true)
		}
	case "io.debezium.time.Date", "org.apache.kafka.connect.data.Date":
		if n < -1e6 || n > 1e7 {
			return event.Value{}
		}
		return postgresTime(time.Unix(n*86400, 0), dateLayout)
	case "io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp":
		return postgresTime(time.UnixMilli(n), "2006-01-02 15:04:05.999999")
	case "io.debezium.time.MicroTimestamp":
		return postgresTime(time.UnixMicro(n), "2006-01-02 15:04:05.999999")
	case "io.debezium.time.NanoTimestamp":
		return postgresTime(time.Unix(n/1e9, n%1e9), "2006-01-02 15:04:05.999999")
	case "io.debezium.time.Time", "org.apache.kafka.connect.data.Time":
		return postgresClock(n, time.Millisecond)
	case "io.debezium.time.MicroTime":
		return postgresClock(n, time.Microsecond)
	case "io.debezium.time.NanoTime":
		return postgresClock(n, time.Nanosecond)
	}
	return event.Inexact(s)
}

// postgresTime formats a time as the server does. Programs have it as a time.Time, which they
// format in their own ways.
func postgresTime(t time.Time, layout string) event.Value {
	t = t.UTC()
	if y := t.Year(); y < 1 || y > 9999 { // also infinity
		return event.Value{}
	}
	return event.Inexact(t.Format(layout))
}

// postgresClock is like postgresTime, for a TIME of at most 24 hours.
func postgresClock(n int64, unit time.Duration) event.Value {
	if n < 0 || n > int64(24*time.Hour/unit) {
		return event.Value{}
	}
	s := clock(time.Duration(n)*unit, 6)
	return event.Inexact(strings.TrimSuffix(strings.TrimRight(s, "0"), "."))
}
