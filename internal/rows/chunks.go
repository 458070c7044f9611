package rows

import "iter"

// Chunks parts keys into slices of at most size, without those that a slice has already.
func Chunks[K comparable](keys iter.Seq[K], size int) iter.Seq[[]K] {
	return func(yield func([]K) bool) {
		var chunk []K
		seen := make(map[K]struct{})
		for key := range keys {
			if _, again := seen[key]; again {
				continue
			}
			seen[key] = struct{}{}
			if chunk = append(chunk, key); len(chunk) < size {
				continue
			}
			if !yield(chunk) {
				return
			}
			chunk = nil
			clear(seen)
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}
