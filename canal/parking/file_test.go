package parking

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What was parked can be read by other programs; a line that a crash has cut off spoils no other.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parked")
	f := NewFile(path)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	change := update(row(1, nil), row(errUnknown, "a\xff"))
	change.Time = at
	for _, p := range []Parked{{Binding: "handler search", Change: change, Reason: "never", Time: at},
		{Message: []byte("{"), Reason: "no JSON", Time: at}} {
		if err := f.Park(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	broken, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	broken.WriteString(`{"time":`)
	broken.Close()
	if err := f.Park(t.Context(), Parked{Reason: "last", Time: at}); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	want := []string{
		`{"time":"2026-01-02T03:04:05Z","binding":"handler search","reason":"never","kind":"update","schema":"shop","table":"users","committed":"2026-01-02T03:04:05Z","before":{"ID":"1","email":null,"note":"private"},"after":{"email":{"base64":"Yf8="},"note":"private"}}`,
		`{"time":"2026-01-02T03:04:05Z","reason":"no JSON","message":"{"}`,
		`{"time":`,
		`{"time":"2026-01-02T03:04:05Z","reason":"last"}`,
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines {
		if line != want[i] || (i != 2) != json.Valid([]byte(line)) {
			t.Errorf("%s\nwant %s", line, want[i])
		}
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := NewFile(filepath.Join(path, "no folder")).Park(t.Context(), Parked{}); err == nil {
		t.Error("there is no such folder")
	}
}
