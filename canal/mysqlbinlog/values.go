package mysqlbinlog

import (
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
)

// value is what go-mysql has made of a column. Anything that is no value, such as a part of a JSON
// document, is not known.
func value(v any) event.Value {
	made, err := event.ValueOf(v)
	if err != nil {
		return event.Value{}
	}
	return made
}

// unknownValue is of a column of which only NULL is understood.
func unknownValue(v any) event.Value {
	if v == nil {
		return event.Null()
	}
	return event.Value{}
}

// inexact marks what of returns as a text that the client may show in another way.
func inexact(of func(any) event.Value) func(any) event.Value {
	return func(v any) event.Value {
		made := of(v)
		if !made.Known() || made.IsNull() {
			return made
		}
		return event.Inexact(made.Text())
	}
}

// jsonValue is a document with blanks where MySQL shows them. MySQL writes its numbers by rules of
// its own, so the text is not exact. A part of a document (binlog_row_value_options=PARTIAL_JSON)
// is no value.
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

// textValue makes text of what is in a character set.
func textValue(charset string) func(any) event.Value {
	if asIs[charset] {
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

// unsignedValue is of a column of n bytes. The reader has taken from go-mysql what says that it is
// unsigned, as that makes a map of it for each row.
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

// timeValue adds the zeros that go-mysql leaves out.
func timeValue(decimals int) func(any) event.Value {
	return func(v any) event.Value {
		s, ok := v.(string)
		if ok && decimals > 0 && decimals <= 6 && !strings.Contains(s, ".") {
			v = s + "." + strings.Repeat("0", decimals)
		}
		return value(v)
	}
}

// name is that of a value of ENUM or SET, if its character set is understood.
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

// enumValue is the name of a number; 0 is the empty one that stands for what was not allowed.
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

// setValue is the names whose bits are set.
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
