package bench

import (
	"strings"
	"testing"
)

var text200 = strings.Repeat("x", 200)

// open opens a cache of a peer, and closes it when the test ends.
func open(t testing.TB, p Peer, c Config) Cache {
	t.Helper()
	cache, err := p.Open(c)
	if err != nil {
		t.Fatal(p.Name, err)
	}
	t.Cleanup(func() {
		if err := cache.Close(); err != nil {
			t.Errorf("%s: Close: %v", p.Name, err)
		}
	})
	return cache
}
