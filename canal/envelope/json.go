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
	maxMessage = 64 << 20 // maximum length of a message; brokers have lower limits
	maxColumns = 4096     // of a table; this is MySQL's own limit: https://dev.mysql.com/doc/refman/8.4/en/column-count-limit.html
)

var (
	errNotJSON   = errors.New("not JSON")
	errNotObject = errors.New("not a JSON object")
	errNotText   = errors.New("not a string")
	errType      = errors.New("wrong type")
	errTwice     = errors.New("a name appears twice")
	errMany      = errors.New("more columns than a table can have")
)

// decodeJSON decodes a message into m. If only some members have the wrong type, m contains all
// others. Errors of this file contain nothing of the message. Messages with more than 10,000
// nested levels are refused, because the standard library does not read them.
func decodeJSON(message []byte, m any) error {
	switch {
	case len(message) > maxMessage:
		return fmt.Errorf("longer than %d bytes", maxMessage)
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

// integer is a number in a message. It is 0 if the JSON value is not an integer.
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

// object splits a row into its columns. The row is part of a message, so it is valid JSON.
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
		if len(all) == maxColumns {
			return nil, errMany
		}
		err = d.Decode(&m.value)
		seen[m.name] = struct{}{}
		all = append(all, m)
	}
	return all, err
}

// kindOf returns the first character of a JSON value, which shows its type, or 'n' if there is
// none.
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
