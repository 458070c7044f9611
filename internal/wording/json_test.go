package wording

import (
	"encoding/json"
	"testing"
)

func TestEscapeJSON(t *testing.T) {
	const text = "a\u007f \u00e9 \u202e \u4e16 \U0001f600"
	b, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	got := EscapeJSON(b, func(r rune) bool { return r < 0x80 })
	if want := "\"a\u007f \\u00e9 \\u202e \\u4e16 \\ud83d\\ude00\""; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var again string
	if err := json.Unmarshal([]byte(got), &again); err != nil || again != text {
		t.Errorf("%q %v", again, err)
	}
}
