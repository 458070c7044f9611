package cacheaside

import (
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// remembered looks into the memory tier.
func (l *Loader[K, V]) remembered(key K) (*local.Item[K, V], bool) {
	if l.memory == nil || l.bypass.Load() {
		return nil, false
	}
	visit := l.counters.memory.enter()
	if visit == nil {
		return nil, false
	}
	item, ok := local.Get[K, V](l.memory, l.hash(key), l.id, key)
	visit.leave(ok)
	return item, ok
}

// remember offers out to the memory tier, under the generation from before it was read. A refresh moves the generation on, for it
// must end what is remembered there; if that has moved already, the value is not remembered, and what is there ends too.
func (r *round[K, V]) remember(out *result[V], life time.Duration) {
	l := r.l
	life = min(life, l.options.MemoryTTL)
	if l.memory == nil || life <= 0 {
		return
	}
	if mutant.Active == mutant.GenerationLate {
		out.generation = l.memory.Generation(r.stable)
	}
	if r.refresh {
		var ok bool
		if out.generation, ok = l.memory.Advance(r.stable, out.generation); !ok {
			l.memory.Invalidate(l.hash(r.key), r.stable)
			return
		}
	}
	out.remembered = true
	item := local.Item[K, V]{Loader: l.id, Key: r.key, Value: out.value, Null: out.null, Stable: r.stable, Generation: out.generation}
	local.Set(l.memory, l.hash(r.key), item, local.Weigh(r.key)+local.Weigh(out.value), life)
}

// current tells whether those who came while a round ran may be given its result: it is what the memory tier holds for them.
func (l *Loader[K, V]) current(out result[V]) bool {
	return out.remembered && !l.bypass.Load() &&
		(l.memory.Generation(out.stable) == out.generation || mutant.Active == mutant.LateGeneration)
}

// forget ends what this process's memory holds of a key.
func (l *Loader[K, V]) forget(key K, encoded string) {
	if l.memory != nil {
		l.memory.Invalidate(l.hash(key), stableHash(l.name, encoded))
	}
}

// hash is of this process and loader only.
func (l *Loader[K, V]) hash(key K) uint64 {
	if mutant.Active == mutant.MemoryKey {
		return 1
	}
	return maphash.Comparable(l.seed, key)
}

// visits are a loader's looks into the memory tier: how many are under way, so that the tier is not closed under them (ristretto's Get
// panics if its Close races it), and how many were hits. It is striped, so that goroutines on different cores rarely touch the same
// cache line, and one word holds both, so that a visit is two atomic additions.
type visits struct {
	stripes [16]struct {
		visit
		_ [64 - unsafe.Sizeof(visit{})]byte
	}
	closed atomic.Bool
}

// visit counts those under way in its low bits, hits above.
type visit struct{ n atomic.Int64 }

const oneHit = 1 << 20

// enter begins a visit; nil after close.
func (v *visits) enter() *visit {
	s := &v.stripes[rand.Uint32()%uint32(len(v.stripes))].visit
	s.n.Add(1)
	if v.closed.Load() && mutant.Active != mutant.CloseRacesHits {
		s.n.Add(-1)
		return nil
	}
	return s
}

func (s *visit) leave(hit bool) {
	if hit {
		s.n.Add(oneHit - 1)
	} else {
		s.n.Add(-1)
	}
}

func (v *visits) hits() (n int64) {
	for i := range v.stripes {
		n += v.stripes[i].n.Load() / oneHit
	}
	return n
}

// close lets nobody in any more, and returns when all have left. A visit takes no longer than a look into a map.
func (v *visits) close() {
	v.closed.Store(true)
	for i := range v.stripes {
		for v.stripes[i].n.Load()%oneHit != 0 && mutant.Active != mutant.CloseRacesHits {
			runtime.Gosched()
		}
	}
}
