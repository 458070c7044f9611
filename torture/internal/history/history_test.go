package history

import (
	"os"
	"path/filepath"
	"testing"
)

// A file is read back without an incomplete operation at its end.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "ops")
	w, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	want := []Op{
		{Kind: Commit, Flags: Many | Failed, Goroutine: 513, Key: 1 << 20, Timeout: 3_000_000, Version: 1 << 40, Start: Now(), End: Now()},
		{Kind: Get, Key: 7, Version: -1},
		{Kind: After, Version: 2, Least: 1 << 41, Acked: Now()},
	}
	w.Record(want...)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(name)
	os.WriteFile(name, append(b, b[:opSize-1]...), 0o600)
	got, err := Read(nil, name, 3)
	if err != nil || len(got) != len(want) {
		t.Fatal(got, err)
	}
	for i := range want {
		if want[i].Process = 3; got[i] != want[i] {
			t.Errorf("read %+v, want %+v", got[i], want[i])
		}
	}
	if got, err := Read(nil, name+"x", 0); len(got) != 0 || err != nil {
		t.Error(got, err)
	}
}
