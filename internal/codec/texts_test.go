package codec_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
)

// id is binary, and encodes itself as text.
type id [4]byte

func (i id) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, i[:]), nil }
func (i *id) UnmarshalText(b []byte) error {
	_, err := hex.Decode(i[:], b)
	return err
}

// verbatim encodes itself as its text.
type verbatim struct{ text string }

func (v verbatim) MarshalText() ([]byte, error)  { return []byte(v.text), nil }
func (v *verbatim) UnmarshalText(b []byte) error { v.text = string(b); return nil }
func (l letter) MarshalJSON() ([]byte, error)    { return json.Marshal(string(l.text)) }
func (r rawJSON) MarshalJSON() ([]byte, error)   { return []byte(`"` + r.text + `"`), nil }
func (r *rawJSON) UnmarshalJSON(b []byte) error  { r.text = string(b[1 : len(b)-1]); return nil }
func (s sealed) MarshalText() ([]byte, error)    { return fmt.Appendf(nil, "%x %s", s.key, s.note), nil }
func (s *sealed) UnmarshalText(b []byte) (err error) {
	_, err = fmt.Sscanf(string(b), "%x %s", &s.key, &s.note)
	return err
}

func (l *locked) MarshalJSON() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return json.Marshal(l.text)
}
func (l *locked) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &l.text) }

func (l *letter) UnmarshalJSON(b []byte) error {
	var s string
	err := json.Unmarshal(b, &s)
	l.text, l.read = []byte(s), time.Now()
	return err
}

type (
	// letter encodes bytes as text, and does not come back as it was.
	letter struct {
		text []byte
		read time.Time
	}
	rawJSON struct{ text string }
	// sealed encodes one text as hexadecimal digits, and one as it is.
	sealed struct{ key, note string }
	// locked may be in use by others.
	locked struct {
		mu   sync.Mutex
		text string
	}
	inner struct {
		Text string `json:",omitempty"`
	}
	texts struct {
		ID      id
		V       verbatim
		P       *verbatim
		Keys    map[verbatim]int
		IDs     map[id]string
		Letter  *letter
		Raw     *rawJSON
		Sealed  *sealed
		Bytes   []byte
		Array   [3]byte
		At      time.Time
		Any     map[string]any
		Number  json.Number
		Dropped string `json:"-"`
		hidden  string
		inner
		List []inner
		Lock *locked
	}
)

// Text that is not UTF-8 is noticed wherever it is, also next to a U+FFFD of the value, which is
// no reason to refuse it. Neither is a byte that is not encoded as text.
func TestTextThatIsNotUTF8(t *testing.T) {
	const bad, good = "a\xffb", "a\ufffdb"
	binary := id{0xff, 0xfe, 0xfd, 0xfc}
	for name, c := range map[string]struct {
		change func(v *texts)
		bad    bool
	}{
		"valid everywhere": {func(v *texts) {
			*v = texts{
				ID: binary, V: verbatim{good}, P: &verbatim{good}, Keys: map[verbatim]int{{good}: 1},
				IDs: map[id]string{binary: good},
				Raw: &rawJSON{good}, Letter: &letter{text: []byte(good)}, Sealed: &sealed{"\xff", good},
				Bytes: []byte(bad), Array: [3]byte{0xff},
				At: time.Now(), Any: map[string]any{good: []any{good}}, Dropped: bad, hidden: bad, inner: inner{good},
				List: []inner{{good}},
			}
		}, false},
		"a text method":               {func(v *texts) { v.V.text = bad }, true},
		"a pointer to one":            {func(v *texts) { v.P = &verbatim{bad} }, true},
		"the key of a map":            {func(v *texts) { v.Keys = map[verbatim]int{{bad}: 1} }, true},
		"a value of a map":            {func(v *texts) { v.IDs = map[id]string{binary: bad} }, true},
		"a method that uses JSON":     {func(v *texts) { v.Letter = &letter{text: []byte(bad)} }, true},
		"JSON that is not UTF-8":      {func(v *texts) { v.Raw = &rawJSON{bad} }, true},
		"one of two texts":            {func(v *texts) { v.Sealed = &sealed{"\xff", bad} }, true},
		"an any":                      {func(v *texts) { v.Any = map[string]any{"a": map[string]any{bad: 1}} }, true},
		"a pointer in an any":         {func(v *texts) { v.Any = map[string]any{"a": &inner{bad}} }, true},
		"an embedded struct":          {func(v *texts) { v.Text = bad }, true},
		"a list":                      {func(v *texts) { v.List = []inner{{good}, {bad}} }, true},
		"a lock":                      {func(v *texts) { v.Lock = &locked{text: "good"} }, false},
		"a U+FFFD next to a lock":     {func(v *texts) { v.Text, v.Lock = good, &locked{text: "good"} }, false},
		"a U+FFFD behind a lock":      {func(v *texts) { v.Lock = &locked{text: good} }, true}, // it cannot be read
		"a list in an any with bytes": {func(v *texts) { v.Any = map[string]any{"a": []any{[]byte(bad), good}} }, false},
	} {
		v := texts{Number: "1"}
		c.change(&v)
		v.Number = "1"
		_, err := must[texts](t, codec.JSON).Encode(v)
		if changed, refused := errors.AsType[codec.NotCarried](err); refused != c.bad || err != nil && !refused {
			t.Errorf("%s: %v %q", name, err, changed)
		}
	}
}
