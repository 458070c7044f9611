package source

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
)

// maxFailures is the maximum number of remembered keys. It suffices for a process that asks a
// thousand times a second for rows that cannot be loaded.
const maxFailures = 10_000

// Failures remembers which keys have failed to load in this process within ErrorTTL, and why.
// This prevents repeated loads if Redis holds no failure marker, because there is no Redis or it
// is down. Keys are identified by a hash with a random seed.
//
// No goroutine removes old failures. New ones go into the map current, and the map previous is
// dropped when current is full or old.
type Failures struct {
	seed  maphash.Seed
	start time.Time // the zero of the clock
	ttl   time.Duration

	newestUntil atomic.Int64 // when the newest failure expires, on the clock
	epochs      [1024]atomic.Uint32

	mu                sync.Mutex
	current, previous map[uint64]failure
	currentSince      time.Duration // when current was created
}

// A failure is the reason why a key has failed to load.
type failure struct {
	until time.Duration
	cause error
	local bool // Redis has no marker of it
}

func newFailures(ttl time.Duration) *Failures {
	return &Failures{seed: maphash.MakeSeed(), start: time.Now(), ttl: ttl}
}

func (f *Failures) hash(text string) uint64 { return maphash.String(f.seed, text) }

func (f *Failures) now() time.Duration { return time.Since(f.start) }

// Epoch returns a number that End raises for the key, and for keys with a similar hash. A load
// must take it when it begins, for Add.
func (f *Failures) Epoch(text string) uint32 { return f.epochOf(f.hash(text)).Load() }

func (f *Failures) epochOf(hash uint64) *atomic.Uint32 { return &f.epochs[hash%uint64(len(f.epochs))] }

// Add records that a load has failed. local means that only this process knows. Add does nothing
// if End has raised the key's epoch since, because then the load began before a change of the
// row.
func (f *Failures) Add(text string, epoch uint32, cause error, local bool) {
	hash, now := f.hash(text), f.now()
	until := now + f.ttl
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newestUntil.Store(int64(until)) // before the epoch is read; End raises the epoch and then reads newestUntil
	if f.epochOf(hash).Load() != epoch {
		return
	}
	if f.current == nil || now-f.currentSince > until-now || len(f.current) >= maxFailures/2 {
		f.current, f.previous, f.currentSince = make(map[uint64]failure), f.current, now
	}
	f.current[hash] = failure{until, cause, local}
}

// get returns the failure of a key, or the zero failure if there is none or it has expired.
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

// Local reports whether a key has a failure that only this process knows.
func (f *Failures) Local(text string) bool { return f.get(text).local }

// Err returns the error of a read of a key that failed to load a moment ago. It includes the
// cause if the load was made by this process.
func (f *Failures) Err(text string) error {
	if cause := f.get(text).cause; cause != nil {
		return fmt.Errorf("%w: %w", fault.LoadFailed, cause)
	}
	return fault.LoadFailed
}

// End forgets a key's failure. If a load of the key is in progress, its failure will not be
// recorded.
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
