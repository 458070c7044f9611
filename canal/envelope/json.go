package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	mostBytes   = 64 << 20 // of a message: a broker's own limit is less
	mostColumns = 4096     // of a table, which is MySQL's own limit: https://dev.mysql.com/doc/refman/8.4/en/column-count-limit.html
)

var (
	errNotJSON   = errors.New("it is not JSON")
	errNotObject = errors.New("it is not an object")
	errNotText   = errors.New("it is not a text")
	errType      = errors.New("it is not of its type")
	errTwice     = errors.New("a name appears twice")
	errMany      = errors.New("more columns than a table can have")
)

// open decodes a message into m. Its errors, as all of these, show nothing of what is in it. If
// only some of its parts are of another type, m has all others. JSON that is nested deeper than the
// standard library reads, 10,000 levels, is refused.
func open(message []byte, m any) error {
	switch {
	case len(message) > mostBytes:
		return fmt.Errorf("it is longer than %d bytes", mostBytes)
	case !utf8.Valid(message) || !json.Valid(message):
		return errNotJSON
	case kindOf(message) != '{':
		return errNotObject
	}
	err := json.Unmarshal(message, m)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: %w", strings.ToLower(e.Field), errType)
	}
	return err
}

// integer is a number in a message: 0 if it is not an integer.
type integer int64

func (i *integer) UnmarshalJSON(b []byte) error {
	n, _ := strconv.ParseInt(string(b), 10, 64)
	*i = integer(n)
	return nil
}

// member is a column of a row.
type member struct {
	name  string
	value json.RawMessage
}

// object takes apart a row, which is a part of a message, and so valid JSON.
func object(raw []byte) ([]member, error) {
	if kindOf(raw) != '{' {
		return nil, errNotObject
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	_, err := d.Token()
	var all []member
	seen := map[string]struct{}{}
	for err == nil && d.More() {
		var m member
		name, _ := d.Token()
		m.name, _ = name.(string)
		if _, twice := seen[m.name]; twice {
			return nil, errTwice
		}
		if len(all) == mostColumns {
			return nil, errMany
		}
		err = d.Decode(&m.value)
		seen[m.name] = struct{}{}
		all = append(all, m)
	}
	return all, err
}

// kindOf returns the first character of a JSON value, which shows its type; 'n' if there is none.
func kindOf(raw []byte) byte {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) == 0 {
		return 'n'
	}
	return raw[0]
}

func text(raw []byte) (s string, err error) {
	if kindOf(raw) != '"' || json.Unmarshal(raw, &s) != nil {
		return "", errNotText
	}
	return s, nil
}
