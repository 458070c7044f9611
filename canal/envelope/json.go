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
	errTwice     = errors.New("a name is there twice")
	errMany      = errors.New("more columns than a table can have")
)

// member is one of a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// members are those of an object, in their order.
type members []member

// open reads a message. Its errors, as all of these, show nothing of what is in it. What is nested deeper than the standard library reads, 10,000 levels, is not JSON.
func open(message []byte) (members, error) {
	if len(message) > mostBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", mostBytes)
	}
	if !utf8.Valid(message) {
		return nil, errNotJSON
	}
	return object(message)
}

func object(raw []byte) (members, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil {
		return nil, errNotJSON
	} else if t != json.Delim('{') {
		return nil, errNotObject
	}
	var all members
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, errNotJSON
		}
		m := member{name: name.(string)} // as all names of JSON are
		if err := d.Decode(&m.value); err != nil {
			return nil, errNotJSON
		}
		switch {
		case seen[m.name]:
			return nil, errTwice
		case len(all) == mostColumns:
			return nil, errMany
		}
		seen[m.name] = true
		all = append(all, m)
	}
	return all, ended(d)
}

// ended checks that what was begun ends, and that nothing comes after it.
func ended(d *json.Decoder) error {
	if _, err := d.Token(); err != nil || d.More() {
		return errNotJSON
	}
	return nil
}

func array(raw []byte) ([]json.RawMessage, error) {
	var all []json.RawMessage
	if kindOf(raw) != '[' || json.Unmarshal(raw, &all) != nil {
		return nil, errNotArray
	}
	return all, nil
}

// kindOf is the first character of a JSON value, which tells what it is; 'n' of none.
func kindOf(raw []byte) byte {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return 'n'
	}
	return raw[0]
}

func text(raw []byte) (string, error) {
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
