package cacheaside

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/source"
)

// shadow is what a loader has that answers from the database, and compares with the caches: see
// LoaderOptions.Shadow. A nil one does nothing.
type shadow struct {
	reads, misses, compared, stale, undecided atomic.Int64

	extra atomic.Int64 // loads that were made for comparisons, or may be by those under way

	mu     sync.Mutex
	n      int // comparisons under way
	closed bool
	under  sync.WaitGroup
}

const (
	shadowsAtOnce = 64
	shadowBurst   = 16 // loads that are allowed beyond the share
)

func (s *shadow) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.n >= shadowsAtOnce {
		return false
	}
	s.n++
	s.under.Add(1)
	return true
}

func (s *shadow) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	s.under.Done()
}

func (s *shadow) close() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
	}
}

func (s *shadow) wait() {
	if s != nil {
		s.under.Wait()
	}
}

func (s *shadow) addTo(to *Stats) {
	if s != nil {
		to.ShadowStale += s.stale.Load() // before what it is a part of
		to.ShadowCompared += s.compared.Load()
		to.ShadowMisses += s.misses.Load()
		to.ShadowUndecided += s.undecided.Load()
		to.ShadowReads += s.reads.Load()
	}
}

// beShadow has callers answered from the database.
func (l *Loader[K, V]) beShadow() {
	l.shadow = &shadow{}
	l.aside.Or(shadowing)
	l.options.RedisDown = FailWhenDown // else the database would be asked twice for all that is read meanwhile
	l.straight = flight.New(flight.Hooks[K, fetch.Round]{Fly: l.readStraight, Await: l.await, Late: never, Caught: caught})
}

// getStraight is Get from the database. group has those that are compared.
func (l *Loader[K, V]) getStraight(ctx context.Context, key K, group *reads[K]) (V, error) {
	l.shadow.reads.Add(1)
	ctx, end := l.observe(ctx, OpGet, 1)
	s, err := l.straight.Do(ctx, key)
	end(err)
	if err != nil {
		var none V
		return none, l.wrap("get", key, err)
	}
	l.cast(key, s, group)
	return l.give(valueOf[V](s.Value), s.Null)
}

// getManyStraight is GetMany from the database.
func (l *Loader[K, V]) getManyStraight(ctx context.Context, keys []K, group *reads[K]) (map[K]V, error) {
	l.shadow.reads.Add(int64(len(keys)))
	found := make(map[K]V, len(keys))
	ctx, end := l.observe(ctx, OpGet, len(keys))
	failed := l.getMany(ctx, "get", l.straight, keys, func(key K, s *fetch.Round) {
		l.cast(key, s, group)
		if value, err := l.give(valueOf[V](s.Value), s.Null); err == nil {
			found[key] = value
		}
	})
	if len(failed) > 0 {
		err := &BatchError[K]{Errs: failed}
		end(err)
		return found, err
	}
	end(nil)
	return found, nil
}

// readStraight is one flight of reads of the database. Not even a key that has no text fails there.
func (l *Loader[K, V]) readStraight(ctx context.Context, f *flight.Flight[K, fetch.Round]) {
	chunks := slices.Collect(slices.Chunk(f.Rounds, l.chunk))
	fetch.AtOnce(chunks, l.calls, func(rounds []*round[K], waiting func()) {
		keys := make([]K, len(rounds))
		for i, r := range rounds {
			keys[i] = r.Key
		}
		for i, got := range l.loadByItself(ctx, keys, source.Call{Waiting: waiting}) {
			s := &rounds[i].Result
			s.Value, s.Null, rounds[i].Err = got.Value, got.Null, got.Err
			if got.Err != nil && ctx.Err() != nil {
				rounds[i].Err = l.fetch.Stopped(ctx)
			}
		}
		f.Land(rounds)
	})
}

// cast has a read done once more, by the caches, if it is of a key that is to be compared. It does
// not wait for that.
func (l *Loader[K, V]) cast(key K, s *fetch.Round, group *reads[K]) {
	if l.bypassed() {
		return
	}
	text, err := l.encodeKey(key)
	if err != nil {
		l.shadow.undecided.Add(1)
		return
	}
	if !l.chosen(text) {
		return
	}
	if !l.shadow.enter() {
		l.shadow.undecided.Add(1)
		return
	}
	row := copied[V]{valueOf[V](s.Value), s.Null, true}
	go func() {
		defer l.shadow.leave()
		l.compareShadow(key, row, group)
	}()
}

// chosen tells whether a key is one of those that are compared: the same in all processes, or none
// of them would find what another has cached.
func (l *Loader[K, V]) chosen(text string) bool {
	const whole = 1 << 32
	mixed := l.keys.Hash(text) * 0x9e3779b97f4a7c15 >> 32 // its lower bits are of the stripes of the memory tier
	return float64(mixed) < l.options.Shadow*whole
}

// compareShadow compares what the caches have with a row that was read just before.
func (l *Loader[K, V]) compareShadow(key K, row copied[V], group *reads[K]) {
	ctx, cancel := context.WithTimeout(l.life, 2*l.options.LoadTimeout+confirmAfter)
	defer cancel()
	first, hit := l.shadowRead(ctx, key, group)
	switch {
	case !first.there:
		l.shadow.undecided.Add(1)
		return
	case !hit:
		l.shadow.misses.Add(1)
		return
	}
	again := func() copied[V] {
		second, hit := l.shadowRead(ctx, key, group)
		second.there = second.there && hit // what was loaded only now is no copy
		return second
	}
	switch l.compareWith(ctx, key, first, row, again, l.mayLoadMore) {
	case measure.Same:
		l.shadow.compared.Add(1)
	case measure.Different:
		l.shadow.compared.Add(1)
		l.shadow.stale.Add(1)
	default:
		l.shadow.undecided.Add(1)
	}
}

// shadowRead is a read by the caches, and whether they had it. What they have not is loaded, if it
// may be.
func (l *Loader[K, V]) shadowRead(ctx context.Context, key K, group *reads[K]) (c copied[V], hit bool) {
	if l.memory != nil && group != l.fresh {
		if item, ok := l.inMemory(key); ok {
			return copied[V]{item.Value, item.Null, true}, true
		}
	}
	if !l.mayLoadMore() {
		return c, false
	}
	l.counters.Misses.Add(1)
	s, err := group.Do(ctx, key)
	if err != nil {
		return c, false
	}
	if hit = s.Hit || s.Refused(); hit {
		l.shadow.extra.Add(-1) // it has not loaded
	}
	return copied[V]{valueOf[V](s.Value), s.Null, true}, hit
}

// mayLoadMore notes a load that is made for a comparison, if there may be one more: with the
// reloads that comparisons have begun in the background, no more than the share of all reads.
func (l *Loader[K, V]) mayLoadMore() bool {
	n := l.shadow.extra.Add(1) + l.counters.Renewals.Load()
	if float64(n) > l.options.Shadow*float64(l.shadow.reads.Load())+shadowBurst {
		l.shadow.extra.Add(-1)
		return false
	}
	return true
}
