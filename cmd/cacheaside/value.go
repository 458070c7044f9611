package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/msgpack"
)

// shownValue is a value in one of three forms, or the reason why it is not shown.
type shownValue struct {
	JSON   json.RawMessage `json:"json,omitempty"`
	Text   *string         `json:"text,omitempty"`
	Hex    *string         `json:"hex,omitempty"`
	Hidden string          `json:"hidden,omitempty"`
}

// value returns the value of an entry. The payload was read up to the maximum length to show;
// stored is its full length.
func (g *getting) value(e *lease.Entry, stored int64) *shownValue {
	most := g.maxValue
	tooLong := &shownValue{Hidden: fmt.Sprintf("longer than --max-value %d", g.maxValue)}
	if stored > int64(most) || stored != int64(len(e.Payload)) {
		return tooLong
	}
	c, err := codec.New[[]byte](nil, 0, most, nil)
	if err != nil {
		return &shownValue{Hidden: err.Error()}
	}
	b, err := c.Decode(codec.Payload{Codec: codec.Raw, Compressed: e.Compressed, Bytes: e.Payload}) // as it is
	switch {
	case errors.Is(err, codec.ErrTooLarge):
		return tooLong
	case err != nil:
		return &shownValue{Hidden: "it cannot be decompressed"}
	}
	return represent(*b, codec.ID(e.Codec))
}

// represent returns bytes as JSON (also valid MessagePack), as text, or as hexadecimal digits.
func represent(b []byte, id codec.ID) *shownValue {
	text := string(b)
	switch {
	case id == codec.MsgPack:
		var v any
		if msgpack.Codec.Decode(b, &v) == nil {
			if j, err := json.Marshal(v); err == nil {
				return &shownValue{JSON: j}
			}
		}
	case id == codec.JSON && json.Valid(b) && utf8.Valid(b):
		return &shownValue{JSON: b}
	case id == codec.Raw && utf8.Valid(b), id == codec.JSON && utf8.Valid(b):
		return &shownValue{Text: &text}
	}
	digits := hex.EncodeToString(b)
	return &shownValue{Hex: &digits}
}

func (s *shownValue) row(row func(cells ...any)) {
	switch {
	case s.Hidden != "":
		row("value", "not shown: "+s.Hidden)
	case s.JSON != nil:
		var line bytes.Buffer
		if json.Compact(&line, s.JSON) != nil {
			line.Write(s.JSON)
		}
		row("value", wording.EscapeJSON(line.Bytes(), unicode.IsPrint))
	case s.Text != nil:
		row("value", fmt.Sprintf("%q", *s.Text))
	default:
		row("value", "0x"+*s.Hex)
	}
}
