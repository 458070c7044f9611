package source

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
)

// maxFailures is how many keys are remembered: enough for a process that asks a thousand times a
// second for rows that cannot be loaded.
const maxFailures = 10_000

// Failures remembers which keys have failed to load in this process a moment ago, and why. Where no
// marker in Redis says so, since there is no Redis or it is out of reach, that keeps them from
// being loaded again. Keys are known by a hash whose seed is this process's. It takes no goroutine:
// there is a map that fills, and one from before, which goes when the first is half of all or old.
type Failures struct {
	seed  maphash.Seed
	start time.Time // of the clock
	ttl   time.Duration

	newestUntil atomic.Int64 // when the newest failure is forgotten, on the clock
	epochs      [1024]atomic.Uint32

	mu                sync.Mutex
	current, previous map[uint64]failure
	currentSince      time.Duration // when the young one did
}

// failure is why a key has failed to load.
type failure struct {
	until time.Duration
	cause error
	local bool // nobody but this process knows of it
}

func newFailures(ttl time.Duration) *Failures {
	return &Failures{seed: maphash.MakeSeed(), start: time.Now(), ttl: ttl}
}

func (f *Failures) hash(text string) uint64 { return maphash.String(f.seed, text) }

func (f *Failures) now() time.Duration { return time.Since(f.start) }

// Ends is how often the failures of keys as this one have been ended. A load takes it when it
// begins, and gives it to Add.
func (f *Failures) Epoch(text string) uint32 { return f.epochOf(f.hash(text)).Load() }

func (f *Failures) epochOf(hash uint64) *atomic.Uint32 { return &f.epochs[hash%uint64(len(f.epochs))] }

// Add notes that a load has failed; here: nobody but this process knows. It notes nothing if the
// key's failures have been ended since ends was taken: then the load is one from before a change.
func (f *Failures) Add(text string, epoch uint32, cause error, local bool) {
	hash, now := f.hash(text), f.now()
	until := now + f.ttl
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newestUntil.Store(int64(until)) // before the look at ends: End looks in the other order
	if f.epochOf(hash).Load() != epoch {
		return
	}
	if f.current == nil || now-f.currentSince > until-now || len(f.current) >= maxFailures/2 {
		f.current, f.previous, f.currentSince = make(map[uint64]failure), f.current, now
	}
	f.current[hash] = failure{until, cause, local}
}

// of returns the failure of a key; the zero one if there is none that still counts.
func (f *Failures) get(text string) failure {
	now := f.now()
	if int64(now) >= f.newestUntil.Load() {
		return failure{}
	}
	hash := f.hash(text)
	f.mu.Lock()
	defer f.mu.Unlock()
	found, ok := f.current[hash]
	if !ok {
		found = f.previous[hash]
	}
	if now >= found.until {
		return failure{}
	}
	return found
}

// Here tells whether a key has failed of which nobody but this process knows.
func (f *Failures) Local(text string) bool { return f.get(text).local }

// Err is the error of a read of a key whose load failed a moment ago. It has the cause if that load
// was this process's.
func (f *Failures) Err(text string) error {
	if cause := f.get(text).cause; cause != nil {
		return fmt.Errorf("%w: %w", fault.LoadFailed, cause)
	}
	return fault.LoadFailed
}

// End forgets a key's failure, and has a load that is under way leave none.
func (f *Failures) End(text string) {
	f.epochOf(f.hash(text)).Add(1)
	f.Forget(text)
}

// Forget forgets a key's failure.
func (f *Failures) Forget(text string) {
	if f.newestUntil.Load() == 0 {
		return
	}
	hash := f.hash(text)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.current, hash)
	delete(f.previous, hash)
}
