package promises

import (
	"testing"

	"github.com/cacheaside/cacheaside"
)

// BenchmarkObserved measures a hit in memory without an Observer and with one.
func BenchmarkObserved(b *testing.B) {
	for name, o := range map[string]cacheaside.Observer{"none": nil, "with": &recordingObserver{}} {
		b.Run(name, func(b *testing.B) {
			p := startOn(b, nil, newTable(map[int]string{1: "row"}), cacheaside.Options{Observer: o}, nil)
			defer p.cache.Close()
			p.remembers(b, 1, "row")
			for b.Loop() {
				if _, err := p.Get(b.Context(), 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
