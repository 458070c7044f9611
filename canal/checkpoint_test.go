package canal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

func TestFileCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "here")
	testCheckpoint(t, NewFileCheckpoint(path))
	if p, err := NewFileCheckpoint(path).Load(t.Context()); len(p) != event.MaxPosition || err != nil {
		t.Errorf("another reads %d bytes, %v", len(p), err)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("%d files", len(files))
	}
}

// testCheckpoint tests the rules that hold for every Checkpoint.
func testCheckpoint(t *testing.T, c Checkpoint) {
	t.Helper()
	ctx := t.Context()
	loads := func(want event.Position) {
		t.Helper()
		if p, err := c.Load(ctx); p != want || err != nil {
			t.Fatalf("%q, %v; want %q", p, err, want)
		}
	}
	saves := func(p event.Position, token int64, want error) {
		t.Helper()
		if err := c.Save(ctx, p, token); !errors.Is(err, want) || want == nil && err != nil {
			t.Fatalf("%q with token %d: %v, want %v", p, token, err, want)
		}
	}
	loads("")
	saves("one", 0, nil)
	loads("one")
	saves("two\nlines\n", 7, nil)
	saves("two\nlines\n", 7, nil)
	loads("two\nlines\n")
	saves("older", 6, ErrSuperseded)
	loads("two\nlines\n")
	saves("three", 7, nil)
	saves("four", 8, nil)
	loads("four")
	saves("", 9, nil)
	loads("")
	if err := c.Save(ctx, event.Position(strings.Repeat("x", event.MaxPosition+1)), 9); err == nil {
		t.Error("a position that is too long is saved")
	}
	saves(event.Position(strings.Repeat("x", event.MaxPosition)), 9, nil)
	loads(event.Position(strings.Repeat("x", event.MaxPosition)))
}

// A damaged file is neither read as an empty one nor overwritten.
func TestFileCheckpointDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "here")
	c := NewFileCheckpoint(path)
	whole := encodeFile("position", 5)
	bad := []string{"", "x", fileHead, fileHead + "\nx\n00000000\n", fileHead + "\n1\n00000001\n", string(whole) + "x",
		strings.Repeat("x", fileLimit+1)}
	for n := range whole {
		bad = append(bad, string(whole[:n]))
		flipped := []byte(string(whole))
		flipped[n] ^= 1
		if p, _, err := decodeFile(flipped); err == nil && p != "position" {
			t.Errorf("byte %d is wrong, and it is %q", n, p)
		}
	}
	for _, content := range bad {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := c.Load(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%.40q is %q, %v", content, p, err)
		}
		if err := c.Save(t.Context(), "new", 9); err == nil {
			t.Errorf("%.40q was overwritten", content)
		}
	}
	if _, err := NewFileCheckpoint(filepath.Join(path, "gone", "here")).Load(t.Context()); err == nil {
		t.Error("there is no such folder")
	}
}

func FuzzFileCheckpoint(f *testing.F) {
	f.Add(encodeFile("position", 5))
	f.Add([]byte(fileHead + "\n1\n00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, token, err := decodeFile(b)
		if err != nil {
			return
		}
		if q, again, err := decodeFile(encodeFile(p, token)); q != p || again != token || err != nil {
			t.Errorf("%q, %d is %q, %d, %v", p, token, q, again, err)
		}
	})
}
