package cacheaside

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/local"
)

// raised begins a new era in a range of keys: the loader is of another generation there.
func (l *Loader[K, V]) raised(place int, generation uint64) {
	l.eras[place].Store(&local.Era{Generation: generation, Since: time.Now()})
}

// forgetAll ends what memory has of the loader, where Redis could not be told that all of it is
// invalidated.
func (l *Loader[K, V]) forgetAll() {
	if l.memory == nil {
		return
	}
	for place := range l.eras {
		if era := l.eras[place].Load(); era == nil { // what was loaded since the start, and no generation is known of
			l.memory.Clear(place)
		} else {
			again := *era
			l.eras[place].CompareAndSwap(era, &again) // else another has come
		}
	}
}
