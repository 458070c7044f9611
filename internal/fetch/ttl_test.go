package fetch

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/source"
)

// TestLifeNeverVanishes: jitter shortens a life, and never to nothing.
func TestLifeNeverVanishes(t *testing.T) {
	for _, jitter := range []float64{-1, 0, 0.1, 0.9} {
		for _, ttl := range []time.Duration{10 * time.Millisecond, time.Second, maxTTL} {
			l := &Fetcher{Options: Options{TTL: ttl, NullTTL: ttl, Jitter: jitter}}
			for range 1000 {
				for _, v := range []source.Row{{}, {Null: true}, {TTL: ttl}} {
					if d := l.ttl(v); d < time.Millisecond || d > ttl {
						t.Fatalf("ttl %v, jitter %v: life %v", ttl, jitter, d)
					}
				}
			}
		}
	}
}
