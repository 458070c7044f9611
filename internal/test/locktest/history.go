package locktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// Faults describes a run: workers acquire, hold, lose and release a few locks, while Disturb causes
// failures.
type Faults struct {
	// Locker returns the Locker of another process.
	Locker func(t testing.TB, o *lock.Options) *lock.Locker

	// TTL is the lifetime of the locks. If the machine is too slow for it, the run is repeated with
	// twice the lifetime. Default: 500 ms; 1 s at full size.
	TTL time.Duration

	// Disturb is called repeatedly, with pauses, until ctx ends. It causes a failure for a while
	// and ends it before it returns. Its result, the kind of failure, is logged.
	Disturb func(ctx context.Context, r *rand.Rand, ttl time.Duration) string

	// Kind is the kind of the locks. Default: exclusive locks.
	Kind Kind

	// Stopped is the environment, as "NAME=value", of separate processes that run Child. Their
	// Lockers are made from these variables. The processes are stopped and resumed in turn. nil:
	// there are none.
	Stopped []string
}

// Kind is a kind of lock: Exclusive, ReadWrite or Semaphore.
type Kind string

// The kinds of locks.
const (
	Exclusive Kind = ""
	ReadWrite Kind = "read-write"
	Semaphore Kind = "semaphore"
)

// permits is the number of permits of a Semaphore.
const permits = 2

// An Event is one operation of a worker. Its times are nanoseconds of the machine's wall clock.
type Event struct {
	Name   string
	Op     string // "acquire", "release" or "expire"
	Lease  uint64 // identifies the lease across processes
	Token  int64
	Shared bool // it is the lease of a reader, or a permit
	Call   int64
	Return int64         // 0: not known to have ended
	Margin time.Duration // how long before the lock's earliest end the context had ended
	Timed  bool          // Margin is set: the context had ended, or should have
}

// A history is long enough to prove something when it has this many acquisitions and failures.
const (
	enoughAcquired  = 20
	enoughDisturbed = 5
)

// atMost limits how long a run may exceed its length to reach these numbers.
const atMost = 30 * time.Second

// Run records one history of at least this length, checks it, and logs its figures.
func (f Faults) Run(t *testing.T, seed uint64, length time.Duration) {
	if f.TTL == 0 {
		f.TTL = 500 * time.Millisecond
		if Full() {
			f.TTL = time.Second
		}
	}
	for !f.run(t, seed, length) {
		if f.TTL > 10*time.Second {
			t.Fatalf("with lives of %v too little has happened", f.TTL)
		}
		f.TTL *= 2
		t.Logf("too little has happened; once more, with lives of %v", f.TTL)
	}
}

// run records and checks one history. It returns false if too little has happened.
func (f Faults) run(t *testing.T, seed uint64, length time.Duration) bool {
	r := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	var events []Event
	acquired := 0
	emit := func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
		if e.Op == "acquire" {
			acquired++
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var late time.Duration
	all.Go(func() { late = lateness(ctx) })
	for i := range 3 {
		l := f.Locker(t, &lock.Options{TTL: f.TTL, Timeout: f.TTL / 4})
		for j := range 2 {
			all.Go(func() { Work(ctx, l, f.Kind, f.TTL, seed*100+uint64(10*i+j), emit) })
		}
	}
	if f.Stopped != nil {
		all.Go(func() { f.stopped(ctx, t, seed, emit) })
	}
	broken, disturbed, began := make(map[string]int), 0, time.Now()
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return acquired >= enoughAcquired && disturbed >= enoughDisturbed
	}
	for ; (!enough() || time.Since(began) <= length) && time.Since(began) < length+atMost; disturbed++ {
		broken[f.Disturb(ctx, r, f.TTL)]++
		Sleep(ctx, rand.N(f.TTL))
	}
	cancel()
	all.Wait()
	t.Logf("seed %d, disturbed: %v", seed, broken)
	check(t, f.Kind, events, late)
	return enough()
}

// Full reports whether tests run at the sizes whose figures are reported.
func Full() bool { return testenv.Accepting }

// Seeds returns the seeds of the histories, and the length of each.
func Seeds() ([]uint64, time.Duration) {
	if Full() {
		return []uint64{1, 2, 3, 4, 5}, 20 * time.Second
	}
	return []uint64{1}, 3 * time.Second
}

// Work runs one worker, which acquires, holds and releases locks at random until ctx ends. It calls
// emit for each operation.
func Work(ctx context.Context, l *lock.Locker, kind Kind, ttl time.Duration, seed uint64, emit func(Event)) {
	r := rand.New(rand.NewPCG(seed, 2))
	for n := uint64(1); ctx.Err() == nil; n++ {
		w := work{Event: Event{Name: string('a' + rune(r.IntN(2))), Lease: uint64(os.Getpid())<<40 + seed<<24 + n},
			emit: emit}
		o := &lock.AcquireOptions{Fixed: r.IntN(6) == 0}
		hold := UpTo(r, ttl/10)
		if o.Fixed || r.IntN(10) == 0 {
			hold = UpTo(r, 2*ttl)
		}
		wait, cancel := context.WithTimeout(ctx, UpTo(r, 2*ttl)+time.Millisecond)
		w.Op, w.Call = "acquire", time.Now().UnixNano()
		w.Shared = kind == Semaphore || kind == ReadWrite && r.IntN(3) > 0
		lease, err := acquireIn(wait, ctx, acquirer(l, kind, w.Shared), w.Name, o)
		cancel()
		if err != nil {
			Sleep(ctx, UpTo(r, ttl/10)) // do not repeat requests in a tight loop while the service is down
			continue
		}
		w.done(lease)
		w.hold(ctx, lease, hold, ttl)
		Sleep(ctx, UpTo(r, ttl/20))
	}
}

type acquire func(ctx context.Context, name string, o *lock.AcquireOptions) (*lock.Lease, error)

// acquirer returns the function that acquires a lock of this kind.
func acquirer(l *lock.Locker, kind Kind, shared bool) acquire {
	switch kind {
	case ReadWrite:
		rw, err := lock.NewReadWrite(l)
		if err != nil {
			panic(err)
		}
		if shared {
			return rw.AcquireRead
		}
		return rw.AcquireWrite
	case Semaphore:
		s, err := lock.NewSemaphore(l, permits)
		if err != nil {
			panic(err)
		}
		return s.Acquire
	default:
		return l.Acquire
	}
}

// acquireIn acquires a lock with a lease bound to ctx. It waits until the context wait ends.
func acquireIn(wait, ctx context.Context, by acquire, name string, o *lock.AcquireOptions) (*lock.Lease, error) {
	attempt, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(wait, func() { cancel(context.Cause(wait)) })
	lease, err := by(attempt, name, o)
	stop()
	return lease, err
}

type work struct {
	Event
	emit func(Event)
}

func (w *work) done(lease *lock.Lease) {
	w.Return, w.Token = time.Now().UnixNano(), lease.Token()
	w.emit(w.Event)
}

// hold holds a lease for d and then releases it. If the lease is lost, hold records when its
// context ended, or its deadline if that is earlier: in a process that was stopped, the context
// ends late.
func (w *work) hold(ctx context.Context, lease *lock.Lease, d, ttl time.Duration) {
	select {
	case <-time.After(d):
	case <-lease.Context().Done():
	}
	// in this order: after its deadline a lease's context should have ended
	now, cause := time.Now(), context.Cause(lease.Context())
	deadline := lease.Deadline()
	left := deadline.Sub(now)
	w.Call, w.Return = min(now.UnixNano(), wall(deadline)), 0
	w.Margin, w.Timed = left+ttl/20+5*time.Millisecond, errors.Is(cause, lock.ErrLost) || cause == nil && left < 0
	if errors.Is(cause, lock.ErrLost) {
		w.Op = "expire"
		w.emit(w.Event)
		lease.Release()
		return
	}
	switch err := lease.Release(); {
	case err == nil:
		w.Op, w.Return = "release", time.Now().UnixNano()
	case errors.Is(err, lock.ErrLost):
		w.Op = "expire"
	default:
		w.Op = "release" // it is unknown whether the lock was released
	}
	w.emit(w.Event)
}

// wall returns the wall clock time, in nanoseconds, of t, a time of the monotonic clock.
func wall(t time.Time) int64 {
	now := time.Now()
	return now.UnixNano() + int64(t.Sub(now))
}

// lateness measures timers until ctx ends, and returns the worst delay. On an overloaded machine no
// context can end in time.
func lateness(ctx context.Context) (worst time.Duration) {
	for ctx.Err() == nil {
		due := time.Now().Add(time.Millisecond)
		time.Sleep(time.Millisecond)
		worst = max(worst, time.Since(due))
	}
	return worst
}
