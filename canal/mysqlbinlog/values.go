package mysqlbinlog

import (
	"strings"

	"github.com/cacheaside/cacheaside/canal"
)

// value is what go-mysql has made of a column. What is no value, such as a part of a JSON document, is not known.
func value(v any) canal.Value {
	made, err := canal.ValueOf(v)
	if err != nil {
		return canal.Value{}
	}
	return made
}

func asItIs(v any) canal.Value { return value(v) }

// textValue makes text of the bytes of a character set.
func textValue(text func([]byte) (string, bool)) func(any) canal.Value {
	return func(v any) canal.Value {
		var b []byte
		switch v := v.(type) {
		case []byte:
			b = v
		case string:
			b = []byte(v)
		default:
			return value(v)
		}
		if s, ok := text(b); ok {
			return canal.TextValue(s)
		}
		return canal.Value{}
	}
}

// timeValue adds the zeros that go-mysql leaves out.
func timeValue(decimals int) func(any) canal.Value {
	return func(v any) canal.Value {
		s, ok := v.(string)
		if ok && decimals > 0 && decimals <= 6 && !strings.Contains(s, ".") {
			v = s + "." + strings.Repeat("0", decimals)
		}
		return value(v)
	}
}

// unsigned is a number whose bits go-mysql gives as those of a signed one.
func unsigned(v any) any {
	if n, ok := v.(int64); ok {
		return uint64(n)
	}
	return v
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
func enumValue(names []name) func(any) canal.Value {
	return func(v any) canal.Value {
		n, ok := v.(int64)
		switch {
		case !ok:
			return value(v)
		case n == 0:
			return canal.TextValue("")
		case n < 0 || n > int64(len(names)) || !names[n-1].ok:
			return canal.Value{}
		}
		return canal.TextValue(names[n-1].text)
	}
}

// setValue is the names whose bits are set.
func setValue(names []name) func(any) canal.Value {
	return func(v any) canal.Value {
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
				return canal.Value{}
			}
			set = append(set, names[i].text)
		}
		return canal.TextValue(strings.Join(set, ","))
	}
}
