package parking

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// MaxSize is the maximum length in bytes of the JSON of a Parked. Longer JSON is cut, because a
// row that a Parking refuses would block the Consumer forever.
const MaxSize = 256 << 10

const (
	maxReason = 4 << 10
	minShown  = 16 // of a value, in bytes; if that is still too much, no values are written
)

// wireParked is the JSON form of a Parked.
type wireParked struct {
	Time    time.Time                  `json:"time,omitzero"`
	Binding string                     `json:"binding,omitempty"`
	Reason  string                     `json:"reason"`
	Kind    string                     `json:"kind,omitempty"`
	Schema  string                     `json:"schema,omitempty"`
	Table   string                     `json:"table,omitempty"`
	At      time.Time                  `json:"committed,omitzero"`
	Before  map[string]json.RawMessage `json:"before,omitzero"` // nil: no row
	After   map[string]json.RawMessage `json:"after,omitzero"`
	Message json.RawMessage            `json:"message,omitempty"`
	Cut     bool                       `json:"cut,omitempty"`

	size int // bytes written for the rows and the message
}

// piece is the JSON form of a text that is cut or is not valid UTF-8. It has either Text or
// Base64.
type piece struct {
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	Length int    `json:"length,omitempty"` // bytes of the whole text, if it is cut
}

const null = "null"

// MarshalJSON returns the Parked as JSON. Rows are objects of the known columns; values are text,
// NULL is null, and bytes that are not valid UTF-8 are {"base64": …}. If the JSON would be longer
// than MaxSize, it has "cut": true, and long values are cut to {"text": …, "length": …} or
// base64, where length is the length of the whole value in bytes. If there are too many columns,
// none are written.
func (p Parked) MarshalJSON() ([]byte, error) {
	c, message := p.Change, string(p.Message)
	for limit := MaxSize; ; limit /= 4 {
		if limit < minShown {
			limit = 0
		}
		w := wireParked{
			Time: jsonTime(p.Time), Binding: p.Binding,
			Reason: strings.ToValidUTF8(p.Reason[:min(len(p.Reason), maxReason)], "\uFFFD"),
			Schema: c.Schema, Table: c.Table, At: jsonTime(c.Time), Cut: p.Cut || len(p.Reason) > maxReason,
		}
		if c.Kind != 0 {
			w.Kind = c.Kind.String()
		}
		w.Before, w.After = w.row(c.Before, limit), w.row(c.After, limit)
		if p.Message != nil {
			w.Message = w.text(message, max(limit, minShown))
		}
		if w.size > MaxSize && limit > 0 {
			continue
		}
		if b, err := json.Marshal(w); err != nil || len(b) <= MaxSize || limit == 0 {
			return b, err
		}
	}
}

// jsonTime returns t in UTC, or the zero time if RFC 3339 cannot represent it.
func jsonTime(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// row writes the columns of a row, each with at most limit bytes, or none if limit is 0. It stops
// when the row is longer than MaxSize.
func (w *wireParked) row(r event.Row, limit int) map[string]json.RawMessage {
	if !r.Exists() {
		return nil
	}
	all := map[string]json.RawMessage{}
	if limit == 0 {
		w.Cut = true
		return all
	}
	for name, v := range r.All() {
		name = strings.ToValidUTF8(name, "\uFFFD")
		switch {
		case w.size > MaxSize:
			return all
		case v.IsNull():
			all[name] = json.RawMessage(null)
		case v.Known():
			all[name] = w.text(v.Text(), limit)
		}
		w.size += len(name)
	}
	return all
}

// text writes at most limit bytes of a text. It does not cut within a UTF-8 character.
func (w *wireParked) text(text string, limit int) json.RawMessage {
	var p piece
	if len(text) > limit {
		p.Length, w.Cut = len(text), true
		for n := 1; n < utf8.UTFMax && !utf8.RuneStart(text[limit]); n++ {
			limit--
		}
		text = text[:limit]
	}
	var v any = text
	switch {
	case !utf8.ValidString(text):
		p.Base64 = []byte(text)
		v = p
	case p.Length > 0:
		p.Text = text
		v = p
	}
	b, _ := json.Marshal(v) // strings and pieces can always be marshalled
	w.size += len(b)
	return b
}

// readText reads the output of text. ok is false if raw is neither text nor base64.
func readText(raw json.RawMessage) (text string, cut, ok bool) {
	if json.Unmarshal(raw, &text) == nil {
		return text, false, true
	}
	var p piece
	if json.Unmarshal(raw, &p) != nil || (p.Text == "") == (p.Base64 == nil) || p.Length < 0 {
		return "", false, false
	}
	return p.Text + string(p.Base64), p.Length > 0, true
}

// UnmarshalJSON reads the output of MarshalJSON. Values are texts, and columns are ordered by
// name. Values that were cut are unknown, and Cut is set; of a cut message, the beginning is
// kept. Errors contain nothing of the content.
func (p *Parked) UnmarshalJSON(b []byte) error {
	if err := p.decode(b); err != nil {
		return wording.Errorf("canal: parked: %w", err)
	}
	return nil
}

func (p *Parked) decode(b []byte) (err error) {
	var w wireParked
	if err := json.Unmarshal(b, &w); err != nil {
		return withoutValues(err)
	}
	read := Parked{Time: w.Time.UTC(), Binding: w.Binding, Reason: w.Reason, Cut: w.Cut,
		Change: event.Change{Schema: w.Schema, Table: w.Table, Time: w.At.UTC()}}
	if read.Change.Kind, err = parseKind(w.Kind); err != nil {
		return err
	}
	if read.Change.Before, err = read.rowOf("before", w.Before); err != nil {
		return err
	}
	if read.Change.After, err = read.rowOf("after", w.After); err != nil {
		return err
	}
	if len(w.Message) > 0 && string(w.Message) != null {
		text, cut, ok := readText(w.Message)
		if !ok {
			return errors.New(`"message" is neither text nor base64`)
		}
		read.Message, read.Cut = []byte(text), read.Cut || cut
	}
	*p = read
	return nil
}

// withoutValues returns an error of package json without the values that it contains.
func withoutValues(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not JSON, at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%.64q, at byte %d, has the wrong type", e.Field, e.Offset)
	}
	return errors.New(`"time" or "committed" is not a time`)
}

func parseKind(s string) (event.Kind, error) {
	if s == "" {
		return 0, nil
	}
	for k := range 256 {
		if k := event.Kind(k); k.String() == s {
			return k, nil
		}
	}
	return 0, errors.New(`"kind" is unknown`)
}

// rowOf returns a row with the values of a field. It sets Cut if a value is cut.
func (p *Parked) rowOf(field string, values map[string]json.RawMessage) (event.Row, error) {
	if values == nil {
		return event.Row{}, nil
	}
	names := slices.Sorted(maps.Keys(values))
	cells := make([]event.Value, len(names))
	for i, name := range names {
		if string(values[name]) == null {
			cells[i] = event.Null()
			continue
		}
		text, cut, ok := readText(values[name])
		switch {
		case !ok:
			return event.Row{}, fmt.Errorf("%q, column %.64q: neither text nor base64", field, name)
		case cut:
			p.Cut = true
		default:
			cells[i] = event.TextValue(text)
		}
	}
	return event.NewRow(event.NewColumns(names...), cells)
}
