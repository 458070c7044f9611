package mysqlbinlog

import (
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
)

// value returns the Value of what go-mysql has read for a column. For anything else, such as a
// part of a JSON document, it returns the unknown Value.
func value(v any) event.Value {
	made, err := event.ValueOf(v)
	if err != nil {
		return event.Value{}
	}
	return made
}

// unknownValue converts a value of a column whose type is not supported. It returns NULL for nil,
// and the unknown Value for anything else.
func unknownValue(v any) event.Value {
	if v == nil {
		return event.Null()
	}
	return event.Value{}
}

// inexact marks the Values of convert as texts that may differ from what the client shows.
func inexact(convert func(any) event.Value) func(any) event.Value {
	return func(v any) event.Value {
		made := convert(v)
		if !made.Known() || made.IsNull() {
			return made
		}
		return event.Inexact(made.Text())
	}
}

// jsonValue returns a document with the blanks that MySQL shows. MySQL formats numbers by its own
// rules, so the text is not exact. A part of a document (binlog_row_value_options=PARTIAL_JSON)
// is unknown.
func jsonValue(v any) event.Value {
	var text string
	switch v := v.(type) {
	case string:
		text = v
	case []byte:
		text = string(v)
	default:
		return value(v)
	}
	var b strings.Builder
	b.Grow(len(text) + len(text)/8)
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		b.WriteByte(c)
		switch {
		case c == '\\' && quoted && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == '"':
			quoted = !quoted
		case (c == ',' || c == ':') && !quoted:
			b.WriteByte(' ')
		}
	}
	return event.Inexact(b.String())
}

// textValue returns the function that decodes text in a character set.
func textValue(charset string) func(any) event.Value {
	if utf8Charsets[charset] {
		return value
	}
	text, other := decoder(charset), notASCII[charset]
	return func(v any) event.Value {
		var b []byte
		switch v := v.(type) {
		case []byte:
			b = v
		case string:
			b = []byte(v)
		default:
			return value(v)
		}
		if !other && isASCII(b) {
			return value(v)
		}
		if s, ok := text(b); ok {
			return event.TextValue(s)
		}
		return event.Value{}
	}
}

// unsignedValue returns the function that converts an unsigned number of n bytes to a Value.
// tables.describe removes the information about signedness from the event, because go-mysql would
// build a map from it for each row. So go-mysql returns signed numbers.
func unsignedValue(n int) func(any) event.Value {
	return func(v any) event.Value {
		switch m := v.(type) {
		case int8:
			v = uint8(m)
		case int16:
			v = uint16(m)
		case int32:
			v = uint32(m)
			if n == 3 {
				v = uint32(m) & 0xffffff
			}
		case int64:
			v = uint64(m)
		}
		return value(v)
	}
}

// timeValue adds the zeros that go-mysql omits from the fraction.
func timeValue(decimals int) func(any) event.Value {
	return func(v any) event.Value {
		s, ok := v.(string)
		if ok && decimals > 0 && decimals <= 6 && !strings.Contains(s, ".") {
			v = s + "." + strings.Repeat("0", decimals)
		}
		return value(v)
	}
}

// name is the text of a value of an ENUM or SET. ok is false if its character set is not
// understood.
type name struct {
	text string
	ok   bool
}

func decoded(names []string, text func([]byte) (string, bool)) []name {
	all := make([]name, len(names))
	for i, n := range names {
		all[i].text, all[i].ok = text([]byte(n))
	}
	return all
}

// enumValue returns the name of a number. 0 is the empty text, which stands for an invalid value.
func enumValue(names []name) func(any) event.Value {
	return func(v any) event.Value {
		n, ok := v.(int64)
		switch {
		case !ok:
			return value(v)
		case n == 0:
			return event.TextValue("")
		case n < 0 || n > int64(len(names)) || !names[n-1].ok:
			return event.Value{}
		}
		return event.TextValue(names[n-1].text)
	}
}

// setValue returns the names whose bits are set.
func setValue(names []name) func(any) event.Value {
	return func(v any) event.Value {
		n, ok := v.(int64)
		if !ok {
			return value(v)
		}
		var set []string
		for i := range 64 {
			if uint64(n)&(1<<i) == 0 {
				continue
			}
			if i >= len(names) || !names[i].ok {
				return event.Value{}
			}
			set = append(set, names[i].text)
		}
		return event.TextValue(strings.Join(set, ","))
	}
}
