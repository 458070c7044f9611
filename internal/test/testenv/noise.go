package testenv

import (
	"iter"
	"math/rand/v2"
	"os"
	"slices"
)

// Accepting reports whether tests do the long runs whose figures are reported (make accept).
var Accepting = os.Getenv("CACHEASIDE_ACCEPT") != ""

// AtSize returns n if Accepting, and otherwise few.
func AtSize(few, n int) int {
	if Accepting {
		return n
	}
	return few
}

// Noise returns n inputs for a decoder: pieces of the corpus that are cut, joined and changed at
// random, and sometimes random bytes. The same seed always produces the same inputs. Noise does not
// measure coverage, so it produces a hundred times more inputs per second than `go test -fuzz`. An
// input is valid only until the next one.
func Noise(seed uint64, n int, corpus ...[]byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		r := rand.New(rand.NewPCG(seed, 0))
		interesting := []byte{0, 1, 0x7f, 0x80, 0xff, '{', '}', '%', '~', '"', 0xe1, 0xa1, 0xf1, 0xdd, 0xdf, 0xc9}
		var b []byte
		for range n {
			b = append(b[:0], corpus[r.IntN(len(corpus))]...)
			for range r.IntN(4) {
				switch position := r.IntN(len(b) + 1); r.IntN(6) {
				case 0: // truncate
					b = b[:position]
				case 1: // delete
					b = slices.Delete(b, position, min(len(b), position+r.IntN(8)))
				case 2: // join
					other := corpus[r.IntN(len(corpus))]
					b = append(b[:position], other[r.IntN(len(other)+1):]...)
				case 3: // insert
					b = slices.Insert(b, position, interesting[r.IntN(len(interesting))])
				case 4:
					if position < len(b) {
						b[position] = interesting[r.IntN(len(interesting))]
					}
				default:
					if position < len(b) {
						b[position] ^= 1 << r.IntN(8)
					}
				}
			}
			if r.IntN(16) == 0 {
				b = b[:0]
				for range r.IntN(64) {
					b = append(b, byte(r.Uint32()))
				}
			}
			if !yield(b) {
				return
			}
		}
	}
}
