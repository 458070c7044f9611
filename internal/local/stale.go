package local

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// GetStale is Get for when Redis cannot be asked: what has ended is served for this much longer, whether or not anybody can say that it has not been invalidated
// elsewhere. So it heeds no trust, and no Clear, which is a doubt; but all that is known to have been invalidated, by this process, or by another one that was heard.
func GetStale[K comparable, V any](t *Tier, hash uint64, eras *Eras, key K, beyond time.Duration) (*Item[K, V], bool) {
	v, ok := t.cache.Get(hash)
	if !ok {
		return nil, false
	}
	item, ok := v.(*Item[K, V])
	if !ok || item.Key != key || item.Era != eras.Of(item.Range) {
		return nil, false
	}
	if over := time.Since(t.start) - item.expires; over >= beyond && mutant.Active != mutant.StaleForEver {
		return nil, false
	}
	now, _ := t.generations.firm(item.Range, item.Stable, 0)
	return item, now == item.firm || mutant.Active == mutant.StaleInvalidated
}
