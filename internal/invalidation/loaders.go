package invalidation

import (
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// loaders are those of this process, with what is known of their generations.
type loaders struct {
	mu     sync.Mutex
	sorted []string
	known  map[string]*known
}

// known is what is known of one loader: in each range the generation, and when it was learned.
type known struct {
	raised      func(rng int, generation uint64)
	generations [conn.Ranges]uint64
	at          [conn.Ranges]time.Time
}

// Register makes the generations of a loader known to it: raised is called with the first and with
// each change, quickly, and never by two at once.
func (c *Bus) Register(name string, raised func(rng int, generation uint64)) {
	c.loaders.mu.Lock()
	defer c.loaders.mu.Unlock()
	if c.loaders.known == nil {
		c.loaders.known = make(map[string]*known)
	}
	c.loaders.known[name] = &known{raised: raised}
	c.loaders.sorted = append(slices.Clone(c.loaders.sorted), name)
}

// names are not to be changed.
func (l *loaders) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted
}

// answered learns a generation from a poll. One that was sent before the present generation was
// learned may tell of the one before; a later one tells what is so, also if it is less: where Redis
// has lost its data, and its clock with it. In the same instant, which a coarse clock makes of some
// time, it is not taken for later.
func (l *loaders) answered(name string, rng int, generation uint64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.known[name]; k != nil && (generation > k.generations[rng] || l.later(sent, k.at[rng])) {
		k.set(rng, generation, sent)
	}
}

func (*loaders) later(sent, learned time.Time) bool {
	return sent.After(learned)
}

// heard learns one from a message; not the first, for a message may be late, and nothing is
// confirmed before a poll. It tells whether the message says less than is known: it is late, or
// Redis has lost its data since, and only a poll knows.
func (l *loaders) heard(name string, rng int, generation uint64) (doubtful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k != nil && k.generations[rng] != 0 && generation > k.generations[rng] {
		k.set(rng, generation, time.Now())
	}
	return k != nil && generation < k.generations[rng]
}

// announced learns what Redis has just answered to an announcement of our own: it is so, whatever
// was known before, also where nothing was, and an answer to a poll that was sent before comes too
// late. It tells whether more was known: that was wrong, or another process has announced
// meanwhile, and only a poll knows.
func (l *loaders) announced(name string, rng int, generation uint64) (doubtful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k == nil {
		return false
	}
	doubtful = generation < k.generations[rng]
	k.set(rng, generation, time.Now())
	return doubtful
}

func (k *known) set(rng int, generation uint64, at time.Time) {
	changed := k.generations[rng] != generation
	k.generations[rng], k.at[rng] = generation, at
	if changed {
		k.raised(rng, generation)
	}
}
