package main

import (
	"bytes"
	"os"
	"testing"
)

// TestPicture: the picture in docs is the one that this program draws.
func TestPicture(t *testing.T) {
	var drawn bytes.Buffer
	if err := draw(&drawn); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../../docs/read-path.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(drawn.Bytes(), kept) {
		t.Error("go run ./tools/picture > docs/read-path.svg")
	}
}
