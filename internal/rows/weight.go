package rows

import (
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/internal/memory"
)

// unreadFactor is how many bytes of memory a byte of an encoding stands for, where a value cannot
// be weighed whole. See docs/decisions/in-process.md.
const unreadFactor = 8

var errWeight = errors.New("LoaderOptions.Weight has returned a negative number")

// weight returns the weight of an item's key and value in bytes. encoded is the length of the
// value's encoding; 0: it was not encoded.
func (r *Reader[K, V]) weight(item *memory.Item[K, V], encoded int) int64 {
	largest := r.memory.tier.Largest()
	ofKey, _ := memory.Weigh(item.Key, largest)
	if r.options.Weight != nil && !item.Null {
		return ofKey + r.ownWeight(item.Value, largest)
	}
	weight, whole := memory.Weigh(item.Value, largest)
	if whole || item.Null {
		return ofKey + weight
	}
	if encoded == 0 && r.cache.Store != nil { // Redis is out of reach
		if p, err := r.options.Codec.Lossy().Encode(item.Value); err == nil {
			encoded = p.Len()
		}
	}
	return ofKey + max(weight, unreadFactor*int64(encoded))
}

// ownWeight returns what LoaderOptions.Weight says. If that is no weight, the value is too heavy.
func (r *Reader[K, V]) ownWeight(value V, largest int64) (weight int64) {
	failed := func(err error) int64 {
		r.cache.Warn("a value was not weighed, and is not kept in memory", r.options.Fetch.Name, err)
		return memory.TooHeavy
	}
	returned := false
	defer func() {
		if !returned {
			weight = failed(fmt.Errorf("LoaderOptions.Weight has panicked with a %T", recover()))
		}
	}()
	weight = r.options.Weight(value)
	returned = true
	if weight < 0 {
		return failed(errWeight)
	}
	return min(weight, memory.TooHeavy)
}
