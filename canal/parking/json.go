package parking

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// MaxSize is how long the JSON of a Parked is at most, in bytes. Longer JSON is cut, for a row that
// no Parking takes would keep a Consumer waiting for ever.
const MaxSize = 256 << 10

const (
	maxReason  = 4 << 10
	leastShown = 16 // of a value, before no values are shown at all
)

// shownParked is how a Parked is written.
type shownParked struct {
	Time    string              `json:"time,omitempty"`
	Binding string              `json:"binding,omitempty"`
	Reason  string              `json:"reason"`
	Kind    string              `json:"kind,omitempty"`
	Schema  string              `json:"schema,omitempty"`
	Table   string              `json:"table,omitempty"`
	At      string              `json:"committed,omitempty"`
	Before  map[string]*private `json:"before,omitzero"` // nil: no row
	After   map[string]*private `json:"after,omitzero"`
	Message *private            `json:"message,omitempty"`
	Cut     bool                `json:"cut,omitempty"`
}

// private is what a column holds, or a message; a nil one is NULL.
type private struct {
	text  string
	limit int // when it is written: longer ones are cut
	cut   bool
	flaw  bool // it was read, and is neither text nor base64
}

// piece is how that is written which is not just a text.
type piece struct {
	Base64 *string `json:"base64,omitempty"` // what is no UTF-8
	Text   *string `json:"text,omitempty"`
	Length int     `json:"length,omitempty"` // of the whole, if it is cut
}

// MarshalJSON shows all that is in it: rows as objects of the columns that are known, values as
// text, NULL as null, and bytes that are no UTF-8 as {"base64": …}. One that would be longer than
// MaxSize has "cut": true, and its long values are cut to {"text": …, "length": …}, or base64, the
// length being that of the whole in bytes; if there are too many columns, none are shown.
func (p Parked) MarshalJSON() ([]byte, error) {
	c := p.Change
	s := shownParked{
		Time: timeText(p.Time), Binding: p.Binding, Reason: strings.ToValidUTF8(p.Reason[:min(len(p.Reason), maxReason)], "\uFFFD"), Schema: c.Schema, Table: c.Table, At: timeText(c.Time),
		Before: shown(c.Before), After: shown(c.After), Cut: p.Cut || len(p.Reason) > maxReason,
	}
	if c.Kind != 0 {
		s.Kind = c.Kind.String()
	}
	if p.Message != nil {
		s.Message = &private{text: string(p.Message)}
	}
	for limit := MaxSize; limit >= leastShown; limit /= 4 {
		if s.atMost(limit) > MaxSize {
			continue
		}
		if b, err := json.Marshal(s); err != nil || len(b) <= MaxSize {
			return b, err
		}
	}
	s.Cut = true
	if s.Before != nil {
		s.Before = map[string]*private{}
	}
	if s.After != nil {
		s.After = map[string]*private{}
	}
	return json.Marshal(s)
}

// timeText is t as RFC 3339 has it, where it can say that.
func timeText(t time.Time) string {
	if t = t.UTC(); t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// atMost has no value be longer than limit, and answers how many bytes there are then at least.
func (s *shownParked) atMost(limit int) (bytes int) {
	one := func(name string, v *private) {
		bytes += len(name)
		if v != nil {
			v.limit = limit
			bytes += min(len(v.text), limit)
			s.Cut = s.Cut || len(v.text) > limit
		}
	}
	for _, row := range []map[string]*private{s.Before, s.After} {
		for name, v := range row {
			one(name, v)
		}
	}
	one("", s.Message)
	return bytes
}

func shown(r event.Row) map[string]*private {
	if !r.Exists() {
		return nil
	}
	all := make(map[string]*private, len(r.Columns().Names()))
	for name, v := range r.All() {
		name = strings.ToValidUTF8(name, "\uFFFD")
		switch {
		case v.IsNull():
			all[name] = nil
		case v.Known():
			all[name] = &private{text: v.Text()}
		}
	}
	return all
}

// MarshalJSON is for those that are there.
func (v *private) MarshalJSON() ([]byte, error) {
	text, length := v.text, 0
	if len(text) > v.limit {
		text, length = v.text[:v.limit], len(v.text)
		for n := 1; n < utf8.UTFMax && !utf8.ValidString(text); n++ { // it may be cut within a character
			text = text[:len(text)-1]
		}
		if !utf8.ValidString(text) {
			text = v.text[:v.limit]
		}
	}
	if !utf8.ValidString(text) {
		b := base64.StdEncoding.EncodeToString([]byte(text))
		return json.Marshal(piece{Base64: &b, Length: length})
	}
	if length > 0 {
		return json.Marshal(piece{Text: &text, Length: length})
	}
	return json.Marshal(text)
}

// UnmarshalJSON reads what is no null. It leaves errors to the caller, which can say where they
// are.
func (v *private) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &v.text)
	}
	var p piece
	if json.Unmarshal(b, &p) != nil || (p.Text == nil) == (p.Base64 == nil) || p.Length < 0 {
		v.flaw = true
		return nil
	}
	v.cut = p.Length > 0
	if p.Text != nil {
		v.text = *p.Text
		return nil
	}
	text, err := base64.StdEncoding.DecodeString(*p.Base64)
	v.text, v.flaw = string(text), err != nil
	return nil
}

// UnmarshalJSON reads what MarshalJSON has written: values as texts, the columns by their names'
// order. Values that were cut are not known, and Cut is set; of a message there is the beginning.
// Its errors show nothing of what is in it.
func (p *Parked) UnmarshalJSON(b []byte) error {
	if err := p.decode(b); err != nil {
		return fmt.Errorf("canal: parked: %w", err)
	}
	return nil
}

func (p *Parked) decode(b []byte) (err error) {
	var s shownParked
	if err := json.Unmarshal(b, &s); err != nil {
		return withoutValues(err)
	}
	read := Parked{Binding: s.Binding, Reason: s.Reason, Cut: s.Cut, Change: event.Change{Schema: s.Schema, Table: s.Table}}
	if read.Time, err = parseTime("time", s.Time); err != nil {
		return err
	}
	if read.Change.Time, err = parseTime("committed", s.At); err != nil {
		return err
	}
	if read.Change.Kind, err = parseKind(s.Kind); err != nil {
		return err
	}
	if read.Change.Before, err = read.rowOf("before", s.Before); err != nil {
		return err
	}
	if read.Change.After, err = read.rowOf("after", s.After); err != nil {
		return err
	}
	if s.Message != nil {
		if s.Message.flaw {
			return errors.New(`"message" is neither text nor base64`)
		}
		read.Message = []byte(s.Message.text)
		read.Cut = read.Cut || s.Message.cut
	}
	*p = read
	return nil
}

// withoutValues is an error of package json that says where something is wrong, and not what stands
// there.
func withoutValues(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not JSON, at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%.64q, at byte %d, is not what it should be", e.Field, e.Offset)
	}
	return errors.New("no JSON of this")
}

func parseTime(field, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no time", field)
	}
	return t.UTC(), nil
}

func parseKind(s string) (event.Kind, error) {
	if s == "" {
		return 0, nil
	}
	for k := event.Insert; k <= event.Replace; k++ {
		if k.String() == s {
			return k, nil
		}
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "kind "), 10, 8)
	if err != nil {
		return 0, errors.New(`"kind" is not known`)
	}
	return event.Kind(n), nil
}

// rowOf makes a row of what stands in a field, and notes whether it is cut.
func (p *Parked) rowOf(field string, values map[string]*private) (event.Row, error) {
	if values == nil {
		return event.Row{}, nil
	}
	names := slices.Sorted(maps.Keys(values))
	cells := make([]event.Value, len(names))
	for i, name := range names {
		switch v := values[name]; {
		case v == nil:
			cells[i] = event.Null()
		case v.flaw:
			return event.Row{}, fmt.Errorf("%q, column %.64q: neither text nor base64", field, name)
		case v.cut:
			p.Cut = true
		default:
			cells[i] = event.TextValue(v.text)
		}
	}
	return event.NewRow(event.NewColumns(names...), cells)
}
