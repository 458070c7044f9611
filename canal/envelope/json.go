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
	maxMessage = 64 << 20 // maximum length of a message; brokers have lower limits
	// of a table; this is MySQL's own limit:
	// https://dev.mysql.com/doc/refman/8.4/en/column-count-limit.html
	maxColumns = 4096
)

var (
	errNotJSON   = errors.New("not JSON")
	errNotObject = errors.New("not a JSON object")
	errNotText   = errors.New("not a string")
	errType      = errors.New("wrong type")
	errTwice     = errors.New("a name appears twice")
	errMany      = errors.New("more columns than a table can have")
)

// open returns the members of a message. Errors of this file contain nothing of the message.
// Messages with more than 10,000 nested levels are refused, because the standard library does not
// read them.
func open(message []byte) ([]member, error) {
	switch {
	case len(message) > maxMessage:
		return nil, fmt.Errorf("longer than %d bytes", maxMessage)
	case !utf8.Valid(message) || !json.Valid(message):
		return nil, errNotJSON
	}
	return object(bytes.TrimSpace(message))
}

// All functions below read a part of a message that open has checked. So it is valid JSON, and no
// blanks are around it. Parts that they return share the memory of the message; strings do not.

// A scanner iterates over the members of an object, or the elements of an array. It allocates
// nothing.
type scanner struct {
	quoted json.RawMessage // the member's name; nil in an array
	value  json.RawMessage
	rest   []byte
}

// scan returns a scanner. It finds nothing in a value that is neither an object nor an array.
func scan(raw []byte) scanner {
	if kind := kindOf(raw); kind != '{' && kind != '[' {
		return scanner{}
	}
	return scanner{rest: raw[1:]}
}

// next reads the next member or element. It returns false at the end.
func (s *scanner) next() bool {
	depth, start, inString := 0, 0, false
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{', c == '[':
			depth++
		case depth == 0 && c == ':':
			s.quoted, start = bytes.TrimSpace(s.rest[:i]), i+1
		case depth == 0 && (c == ',' || c == '}' || c == ']'):
			s.value, s.rest = bytes.TrimSpace(s.rest[start:i]), s.rest[i+1:]
			return len(s.value) > 0 // it is empty in {} and []
		case c == '}', c == ']':
			depth--
		}
	}
	return false
}

// name returns the name of a member.
func (s *scanner) name() string {
	name, _ := text(s.quoted)
	return name
}

// member is a member of an object, such as a column of a row.
type member struct {
	name  string
	value json.RawMessage
}

// object returns the members of an object, in their order.
func object(raw []byte) ([]member, error) {
	if kindOf(raw) != '{' {
		return nil, errNotObject
	}
	all := make([]member, 0, 16)
	seen := make(map[string]struct{}, cap(all))
	for s := scan(raw); s.next(); {
		if len(all) == maxColumns {
			return nil, errMany
		}
		m := member{s.name(), s.value}
		all = append(all, m)
		if seen[m.name] = struct{}{}; len(seen) < len(all) {
			return nil, errTwice
		}
	}
	return all, nil
}

// array returns the elements of an array, or nil for null.
func array(raw []byte) (all []json.RawMessage, err error) {
	if kind := kindOf(raw); kind != '[' && kind != 'n' {
		return nil, errType
	}
	for s := scan(raw); s.next(); {
		all = append(all, s.value)
	}
	return all, nil
}

// kindOf returns the first character of a JSON value, which shows its type, or 'n' if there is
// none.
func kindOf(raw []byte) byte {
	if len(raw) == 0 {
		return 'n'
	}
	return raw[0]
}

// text returns the content of a string.
func text(raw []byte) (string, error) {
	switch {
	case kindOf(raw) != '"':
		return "", errNotText
	case bytes.IndexByte(raw, '\\') < 0: // nothing is escaped
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// A record is an object whose members are read by their exact names. encoding/json would ignore
// case.
type record struct {
	members []member
	err     error // why the first member that could not be read has the wrong type
}

// fail adds an error about a member.
func (r *record) fail(name string, err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", name, err)
	}
}

// raw returns the value of a member, or nil if there is none.
func (r *record) raw(name string) json.RawMessage {
	for i := range r.members {
		if r.members[i].name == name {
			return r.members[i].value
		}
	}
	return nil
}

// has reports whether there is a member. Its value may be null.
func (r *record) has(name string) bool { return r.raw(name) != nil }

// text returns "" for null and for a missing member.
func (r *record) text(name string) string {
	raw := r.raw(name)
	if kindOf(raw) == 'n' {
		return ""
	}
	s, err := text(raw)
	if err != nil {
		r.fail(name, errType)
	}
	return s
}

// integer returns 0 for anything but an integer.
func (r *record) integer(name string) int64 {
	n, _ := strconv.ParseInt(string(r.raw(name)), 10, 64)
	return n
}

// bool returns false for null and for a missing member.
func (r *record) bool(name string) bool {
	switch string(r.raw(name)) {
	case "true":
		return true
	case "false", "null", "":
		return false
	}
	r.fail(name, errType)
	return false
}

func (r *record) array(name string) []json.RawMessage {
	all, err := array(r.raw(name))
	r.fail(name, err)
	return all
}

// object returns a member that is an object, or an empty one.
func (r *record) object(name string) *record {
	inner := &record{}
	raw := r.raw(name)
	if kindOf(raw) == 'n' {
		return inner
	}
	var err error
	if inner.members, err = object(raw); errors.Is(err, errNotObject) {
		err = errType
	}
	r.fail(name, err)
	return inner
}
