package cacheaside

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// maxMarks is how many keys a window remembers: enough for a process that asks a thousand times a second for rows that cannot be loaded.
const maxMarks = 10_000

// window remembers which keys have failed to load in this process a moment ago, and why. Where no
// marker in Redis says so, since there is no Redis or it is out of reach, that keeps them from
// being loaded again. Keys are known by a hash whose seed is this process'. It takes no goroutine:
// there is a map that fills, and one from before, which goes when the first is half of all or old.
type window struct {
	last atomic.Int64 // when the newest mark ends, on the loader's clock
	ends [1024]atomic.Uint32

	mu          sync.Mutex
	young, aged map[uint64]failure
	began       time.Duration // when the young one did
}

// failure is the mark of a key that failed to load.
type failure struct {
	until time.Duration
	cause error
	here  bool // nobody but this process knows of it
}

// generation is how often windows of such keys have been ended.
func (w *window) generation(key uint64) uint32 { return w.ends[key%uint64(len(w.ends))].Load() }

// fail marks a key until f ends, unless it has been ended since from was its generation: then the
// load is one from before the change.
func (w *window) fail(key uint64, from uint32, now time.Duration, f failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last.Store(int64(f.until)) // before the look at the generation: end looks in the other order
	if w.generation(key) != from {
		return
	}
	if w.young == nil || now-w.began > f.until-now || len(w.young) >= maxMarks/2 {
		w.young, w.aged, w.began = make(map[uint64]failure), w.young, now
	}
	w.young[key] = f
}

// of returns the mark of a key; none that has not ended: the zero one.
func (w *window) of(key uint64, now time.Duration) failure {
	if int64(now) >= w.last.Load() {
		return failure{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.young[key]
	if !ok {
		f = w.aged[key]
	}
	if now >= f.until {
		return failure{}
	}
	return f
}

// failed tells whether a key is marked that nobody but this process knows to have failed.
func (w *window) failed(key uint64, now time.Duration) bool { return w.of(key, now).here }

// end takes a key's mark away, and has a load that is under way leave none.
func (w *window) end(key uint64) {
	w.ends[key%uint64(len(w.ends))].Add(1)
	w.clear(key)
}

// clear takes a key's mark away.
func (w *window) clear(key uint64) {
	if w.last.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.young, key)
	delete(w.aged, key)
}

// mark is what a key is known by in the window.
func (l *Loader[K, V]) mark(text string) uint64 { return maphash.String(l.seed, text) }

// mayLoad ends those rounds that would load alone a key that failed to load a moment ago, or that
// another has loaded meanwhile. It answers the others, and their keys, which have all entered the
// gate.
// A refresh is asked for in spite of that, and ends it; a reload in the background is not.
func (b *batch[K, V]) mayLoad(rounds []*round[K, V], keys []K) ([]*round[K, V], []K) {
	now := time.Since(b.l.start)
	var ended, others []K
	for i, r := range rounds {
		s := &r.Result
		key := b.l.mark(s.text)
		s.ends = b.l.window.generation(key)
		switch {
		case b.refresh && !b.renewal:
			b.l.window.clear(key)
		case s.alone && !s.bypass && b.l.window.failed(key, now):
			b.l.counters.failedByMark.Add(1)
			r.Err, s.step = b.l.failedBefore(s.text), over
			ended = append(ended, keys[i])
		case s.alone && !b.refresh && b.l.kept(r):
			s.step = over
			ended = append(ended, keys[i])
		}
	}
	if len(ended) == 0 {
		return rounds, keys
	}
	for i, r := range rounds {
		if r.Result.step != over {
			others = append(others, keys[i])
		}
	}
	b.l.gate.leave(ended)
	return at(rounds, toLoad), others
}

// failed marks a key whose load has failed; here: Redis is not told.
func (l *Loader[K, V]) failed(s *state[V], cause error, here bool) {
	if !s.bypass {
		now := time.Since(l.start)
		l.window.fail(l.mark(s.text), s.ends, now, failure{now + l.options.ErrorTTL, cause, here})
	}
}

// failedBefore is the error of a read of a key whose load failed a moment ago. It has the cause if
// that load was this process'.
func (l *Loader[K, V]) failedBefore(text string) error {
	if cause := l.window.of(l.mark(text), time.Since(l.start)).cause; cause != nil {
		return fmt.Errorf("%w: %w", ErrLoadFailed, cause)
	}
	return ErrLoadFailed
}

// notMarked marks here the keys of those rounds whose failure Redis could not be told of.
func (b *batch[K, V]) notMarked(rounds []*round[K, V]) {
	for _, r := range rounds {
		if s := &r.Result; !s.alone && s.attempt.Err != nil {
			b.l.failed(s, r.Err, true)
		}
	}
}

// succeeded takes the mark of a key away that could be loaded.
func (l *Loader[K, V]) succeeded(s *state[V], err error) {
	if err == nil && !s.bypass {
		l.window.clear(l.mark(s.text))
	}
}
