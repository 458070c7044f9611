package envelope

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// field is the part of Kafka Connect's schema for a column. The zero field is a column without a
// schema.
type field struct {
	kind, name string
	scale      string // of a Decimal
	optional   bool
	initial    json.RawMessage // the default of the column

	// The type in the database, in upper case, and its length. They are empty without
	// column.propagate.source.type.
	source, length string

	unavailable string // the placeholder of this column, if the schema declares it
}

// columns returns the columns of one side of a row, "before" or "after". Parts of the schema that
// cannot be read are ignored, and so are all parts that are not needed, because a message can have
// millions of them.
func columns(schema []byte, side string) map[string]field {
	columns := map[string]field{}
	for rows := scan(memberOf(schema, "fields")); rows.next(); {
		if name, _ := text(memberOf(rows.value, "field")); name != side {
			continue
		}
		for s := scan(memberOf(rows.value, "fields")); s.next(); {
			if name, f := newField(s.value); name != "" && len(columns) < maxColumns {
				columns[name] = f
			}
		}
	}
	return columns
}

// memberOf returns a member of an object, or nil if there is none.
func memberOf(raw []byte, name string) json.RawMessage {
	for s := scan(raw); s.next(); {
		if s.name() == name {
			return s.value
		}
	}
	return nil
}

// newField returns the name of a column and its field.
func newField(raw []byte) (column string, f field) {
	for s := scan(raw); s.next(); {
		switch s.name() {
		case "field":
			column, _ = text(s.value)
		case "type":
			f.kind, _ = text(s.value)
		case "name":
			f.name, _ = text(s.value)
		case "optional":
			f.optional = kindOf(s.value) == 't'
		case "default":
			f.initial = s.value
		case "parameters":
			f.addParameters(s.value)
		}
	}
	return column, f
}

func (f *field) addParameters(raw []byte) {
	for s := scan(raw); s.next(); {
		switch s.name() {
		case "scale":
			f.scale, _ = text(s.value)
		case "__debezium.source.column.type":
			kind, _ := text(s.value)
			f.source = strings.ToUpper(kind)
		case "__debezium.source.column.length":
			f.length, _ = text(s.value)
		case "__debezium.unavailable.value.placeholder":
			f.unavailable, _ = text(s.value)
		}
	}
}

// unavailable is the placeholder for a value that the database did not log
// (unavailable.value.placeholder).
const unavailable = "__debezium_unavailable_value"

// omits reports whether a text stands for a value that the database did not log.
func (f field) omits(s string) bool {
	return s == unavailable || f.unavailable != "" && s == f.unavailable
}

// mayBeNull reports whether a value may be NULL in the database: JsonConverter sends the default of
// the column instead, unless replace.null.with.default is false.
func (f field) mayBeNull(raw json.RawMessage) bool {
	return f.optional && kindOf(f.initial) != 'n' && bytes.Equal(raw, f.initial)
}

// digits returns the number of fraction digits of a temporal column, or guess if it is unknown. A
// column that was declared without a length has none.
func (f field) digits(guess int) int {
	n, err := strconv.Atoi(f.length)
	switch {
	case err == nil && n >= 0 && n <= 6:
		return n
	case f.source != "" && f.length == "":
		return 0
	}
	return guess
}

// value returns the value of a column of MySQL or MariaDB. A value without a schema is delivered
// unchanged. A value that does not match the type in its schema is unknown. A value is not exact
// (event.Value.Exact) if a client of the database may show it as another text.
func (f field) value(raw json.RawMessage) event.Value {
	switch kindOf(raw) {
	case 'n':
		return event.Null()
	case '{', '[': // geometry and vectors
		return event.Value{}
	case 't':
		return valueOf(true, true)
	case 'f':
		return valueOf(false, true)
	case '"':
		s, err := text(raw)
		if err != nil {
			return event.Value{}
		}
		if f.omits(s) {
			return event.Omitted()
		}
		return f.ofText(s)
	}
	return f.ofNumber(string(raw))
}

func (f field) ofText(s string) event.Value {
	if f.kind == "bytes" {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return event.Value{}
		}
		if string(b) == unavailable {
			return event.Omitted()
		}
		return f.ofBytes(b)
	}
	switch f.name {
	case "io.debezium.data.Json":
		return event.Inexact(s)
	case "io.debezium.time.ZonedTimestamp":
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return event.Value{}
		}
		_, after, _ := strings.Cut(s, ".")
		return f.ofTime(t, strings.IndexFunc(after+"Z", func(r rune) bool { return r < '0' || r > '9' }), 6)
	case "io.debezium.time.IsoDate":
		return event.TextValue(strings.TrimSuffix(s, "Z"))
	case "io.debezium.time.IsoTime", "io.debezium.time.IsoTimestamp": // Java determines the number of fraction digits
		return event.Inexact(strings.Replace(strings.TrimSuffix(s, "Z"), "T", " ", 1))
	}
	if strings.Contains(f.source, "BINARY") || strings.HasSuffix(f.source, "BLOB") {
		// binary.handling.mode: hex, base64 or base64-url-safe
		return event.Inexact(s)
	}
	return f.ofDigits(s)
}

// ofDigits returns the value of a number or another text. With ZEROFILL it is not exact, because
// clients may show leading zeros.
func (f field) ofDigits(s string) event.Value {
	if strings.Contains(f.source, "ZEROFILL") {
		return event.Inexact(s)
	}
	return event.TextValue(s)
}

func (f field) ofBytes(b []byte) event.Value {
	switch f.name {
	case "org.apache.kafka.connect.data.Decimal":
		scale, err := strconv.Atoi(f.scale)
		if err != nil || scale < 0 || scale > 30 || len(b) > 64 { // MySQL's DECIMAL has at most 65 digits
			return event.Value{}
		}
		return f.ofDigits(decimal(b, scale))
	case "io.debezium.data.Bits": // little-endian
		var n uint64
		if len(b) > 8 {
			return event.Value{}
		}
		for i, c := range b {
			n |= uint64(c) << (8 * i)
		}
		return valueOf(n, true)
	}
	return valueOf(b, true)
}

// decimal formats a big-endian number in two's complement, with scale digits after the point.
func decimal(b []byte, scale int) string {
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)
	return new(big.Rat).SetFrac(n, unit).FloatString(scale)
}

// ofTime returns the value of a DATETIME or TIMESTAMP that was sent with precise fraction digits.
// If the schema does not have the number of fraction digits of the column, it is guessed, and the
// text is not exact. The start of 1970 is not exact either, because Debezium sends it for a date
// of zeros.
func (f field) ofTime(t time.Time, guess, precise int) event.Value {
	digits := f.digits(guess)
	s, ok := datetime(t, digits)
	switch {
	case !ok:
		return event.Value{}
	case f.source == "" || digits > precise || t.UnixNano() == 0:
		return event.Inexact(s)
	}
	return event.TextValue(s)
}

// digitsIf returns digits, or 0 if part is 0.
func digitsIf(part int64, digits int) int {
	if part == 0 {
		return 0
	}
	return digits
}

// float returns the value of a number if the column is a FLOAT or DOUBLE.
func (f field) float(s string) (v event.Value, ok bool) {
	switch f.kind {
	case "float", "float32":
		n, err := strconv.ParseFloat(s, 32)
		return valueOf(float32(n), err == nil), true
	case "double", "float64":
		n, err := strconv.ParseFloat(s, 64)
		return valueOf(n, err == nil), true
	}
	return v, false
}

func (f field) ofNumber(s string) event.Value {
	if v, ok := f.float(s); ok {
		return v
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		if strings.ContainsAny(s, "eE") || f.kind != "bytes" && strings.Contains(s, ".") {
			// without a schema it may be a FLOAT or DOUBLE
			return event.Inexact(s)
		}
		return f.ofDigits(s) // a DECIMAL with decimal.format=NUMERIC, or a large integer
	}
	switch f.name {
	case "io.debezium.time.Date", "org.apache.kafka.connect.data.Date":
		t := time.Unix(n*86400, 0).UTC()
		switch {
		case n < -1e6 || n > 1e7 || t.Year() < 0 || t.Year() > 9999:
			return event.Value{}
		case n == 0: // or 0000-00-00
			return event.Inexact(t.Format(dateLayout))
		}
		return event.TextValue(t.Format(dateLayout))
	case "io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp":
		return f.ofTime(time.UnixMilli(n), digitsIf(n%1e3, 3), 3)
	case "io.debezium.time.MicroTimestamp":
		return f.ofTime(time.UnixMicro(n), 6, 6)
	case "io.debezium.time.NanoTimestamp":
		return f.ofTime(time.Unix(n/1e9, n%1e9), digitsIf(n%1e9, 6), 6)
	case "io.debezium.time.Time", "org.apache.kafka.connect.data.Time":
		return f.ofClock(n, time.Millisecond, digitsIf(n%1e3, 3), 3)
	case "io.debezium.time.MicroTime":
		return f.ofClock(n, time.Microsecond, digitsIf(n%1e6, 6), 6)
	case "io.debezium.time.NanoTime":
		return f.ofClock(n, time.Nanosecond, digitsIf(n%1e9, 6), 6)
	case "io.debezium.time.Year":
		return year(n, f.length == "2")
	}
	if n < 0 && strings.HasPrefix(f.source, "BIGINT UNSIGNED") { // bigint.unsigned.handling.mode=long
		s = strconv.FormatUint(uint64(n), 10)
	}
	return f.ofDigits(s)
}

// ofClock is like ofTime, for a TIME.
func (f field) ofClock(n int64, unit time.Duration, guess, precise int) event.Value {
	if n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit)+1 {
		return event.Value{}
	}
	digits := f.digits(guess)
	s := clock(time.Duration(n)*unit, digits)
	if f.source == "" || digits > precise {
		return event.Inexact(s)
	}
	return event.TextValue(s)
}
