package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

const (
	mostBytes   = 64 << 20 // of a message: a broker's own limit is less
	mostColumns = 4096     // of a table, which is MySQL's own limit: https://dev.mysql.com/doc/refman/8.4/en/column-count-limit.html
)

var (
	errNotJSON   = errors.New("it is not JSON")
	errNotObject = errors.New("it is not an object")
	errNotArray  = errors.New("it is not an array")
	errNotText   = errors.New("it is not a text")
	errTwice     = errors.New("a name appears twice")
	errMany      = errors.New("more columns than a table can have")
)

// member is one of a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// members are those of an object, in their order.
type members []member

// open reads a message. Its errors, as all of these, show nothing of what is in it. JSON that is
// nested deeper than the standard library reads, 10,000 levels, is refused.
func open(message []byte) (members, error) {
	if len(message) > mostBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", mostBytes)
	}
	if !utf8.Valid(message) || !json.Valid(message) {
		return nil, errNotJSON
	}
	return object(message)
}

// object takes apart an object that is a part of a message, and so valid JSON.
func object(raw []byte) (members, error) {
	if kindOf(raw) != '{' {
		return nil, errNotObject
	}
	var all members
	seen := map[string]struct{}{}
	for rest := trim(trim(raw)[1:]); kindOf(rest) != '}'; {
		quoted, after := cut(rest)
		name, err := text(quoted)
		if err != nil || len(after) == 0 {
			return nil, errNotJSON
		}
		m := member{name: name}
		m.value, rest = cut(trim(after[1:])) // behind the colon
		if rest = trim(rest); kindOf(rest) == ',' {
			rest = trim(rest[1:])
		}
		if _, twice := seen[name]; twice {
			return nil, errTwice
		}
		if len(all) == mostColumns {
			return nil, errMany
		}
		seen[name] = struct{}{}
		all = append(all, m)
	}
	return all, nil
}

// array takes apart an array that is a part of a message.
func array(raw []byte) ([]json.RawMessage, error) {
	if kindOf(raw) != '[' {
		return nil, errNotArray
	}
	var all []json.RawMessage
	for rest := trim(trim(raw)[1:]); kindOf(rest) != ']'; {
		var element []byte
		if element, rest = cut(rest); len(element) == 0 {
			return nil, errNotJSON
		}
		if rest = trim(rest); kindOf(rest) == ',' {
			rest = trim(rest[1:])
		}
		all = append(all, element)
	}
	return all, nil
}

func trim(raw []byte) []byte { return bytes.TrimLeft(raw, " \t\r\n") }

// cut is the value at the beginning of valid JSON, and what is after it.
func cut(raw []byte) (value, rest []byte) {
	depth, inText := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inText && c == '\\':
			i++
			continue
		case c == '"':
			inText = !inText
		case inText:
			continue
		case c == '{', c == '[':
			depth++
			continue
		case depth == 0 && (c == ',' || c == ':' || c == '}' || c == ']' || c == ' ' || c == '\t' || c == '\r' || c == '\n'): // the end of a number, or of true, false and null
			return raw[:i], raw[i:]
		case c == '}', c == ']':
			depth--
		default:
			continue
		}
		if depth == 0 && !inText {
			return raw[:i+1], raw[i+1:]
		}
	}
	return raw, nil
}

// kindOf is the first character of a JSON value, which tells what it is; 'n' of none.
func kindOf(raw []byte) byte {
	if raw = trim(raw); len(raw) == 0 {
		return 'n'
	}
	return raw[0]
}

func text(raw []byte) (string, error) {
	if n := len(raw); n >= 2 && raw[0] == '"' && raw[n-1] == '"' && !bytes.ContainsRune(raw, '\\') {
		return string(raw[1 : n-1]), nil
	}
	var s string
	if kindOf(raw) != '"' || json.Unmarshal(raw, &s) != nil {
		return "", errNotText
	}
	return s, nil
}

// get is a member's value; nil if there is none, or null.
func (m members) get(name string) json.RawMessage {
	for i := range m {
		if m[i].name == name && kindOf(m[i].value) != 'n' {
			return m[i].value
		}
	}
	return nil
}

func (m members) has(name string) bool {
	for i := range m {
		if m[i].name == name {
			return true
		}
	}
	return false
}

// text is a member that is a text: "" if there is none.
func (m members) text(name string) (string, error) {
	raw := m.get(name)
	if raw == nil {
		return "", nil
	}
	s, err := text(raw)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// integer is a member that is an integer: 0 if there is none, or it is none.
func (m members) integer(name string) int64 {
	n, _ := strconv.ParseInt(string(m.get(name)), 10, 64)
	return n
}
