package flight

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// reading is the result of a round in a storm.
type reading struct {
	key     int
	began   int64 // when its first look or its flight began, by the storm's clock
	version int64 // of the key, after that
}

const stormKeys = 30

// storm is a group of many keys whose flights do everything that they may do.
type storm struct {
	t     *testing.T
	group *Group[int, reading]
	seed  uint64

	clock    atomic.Int64 // orders what happens
	running  [stormKeys]atomic.Int32
	versions [stormKeys]atomic.Int64 // an invalidation raises one

	looks, flights, rounds, panics, abandoned atomic.Int64
}

func newStorm(t *testing.T, seed uint64, late func(s *storm, r *reading) bool) *storm {
	s := &storm{t: t, seed: seed}
	s.group = New(Hooks[int, reading]{
		Inline:     oneByOne(s.first),
		Run:        s.fly,
		StillValid: func(r *reading) bool { return late(s, r) },
		Caught:     func(any) error { return errStorm },
	})
	return s
}

// begin does the first step of a look or a flight of a key.
func (s *storm) begin(r *Round[int, reading], began int64) {
	if n := s.running[r.Key].Add(1); n != 1 {
		s.t.Errorf("%d looks or flights of key %d at once", n, r.Key)
	}
	r.Result = reading{r.Key, began, s.versions[r.Key].Load()}
}

func (s *storm) end(r *Round[int, reading]) { s.running[r.Key].Add(-1) }

func (s *storm) first(_ context.Context, r *Round[int, reading]) bool {
	began := s.clock.Add(1)
	random := rand.New(rand.NewPCG(s.seed, 1_000_000+uint64(s.looks.Add(1))))
	s.begin(r, began)
	defer s.end(r)
	nap(random)
	switch random.IntN(10) {
	case 0:
		if r.startedBy != nil {
			// A panic would hit all rounds of its DoMany, some of which have not begun: see
			// TestDoManyLooksFirst.
			return false
		}
		s.panics.Add(1)
		panic("first")
	case 1:
		r.Err = errStorm
		return true
	case 2, 3, 4, 5:
		return true
	}
	return false
}

func (s *storm) fly(ctx context.Context, f *Flight[int, reading]) {
	began := s.clock.Add(1)
	random := rand.New(rand.NewPCG(s.seed, 2_000_000+uint64(s.flights.Add(1))))
	s.rounds.Add(int64(len(f.Rounds)))
	for _, r := range f.Rounds {
		s.begin(r, began)
	}
	rounds := slices.Clone(f.Rounds)
	random.Shuffle(len(rounds), func(i, j int) { rounds[i], rounds[j] = rounds[j], rounds[i] })
	crash := -1 // how many are completed before
	if random.IntN(5) == 0 {
		crash = random.IntN(len(rounds) + 1)
	}
	var completing sync.WaitGroup
	for done := 0; done < len(rounds) && done != crash; {
		n := 1 + random.IntN(len(rounds)-done)
		if crash > done {
			n = min(n, crash-done)
		}
		some := rounds[done : done+n]
		done += n
		one := rand.New(rand.NewPCG(s.seed, random.Uint64()))
		complete := func() {
			nap(one)
			s.leftAlone(ctx, f)
			for _, r := range some {
				if one.IntN(3) == 0 { // what is given begins only now
					f.TakeIn(r)
					r.Result = reading{r.Key, s.clock.Add(1), s.versions[r.Key].Load()}
					nap(one)
				}
				if one.IntN(20) == 0 {
					r.Err = errStorm
				}
				s.end(r)
			}
			f.Complete(some)
		}
		if random.IntN(3) == 0 {
			complete()
		} else {
			completing.Go(complete)
		}
	}
	completing.Wait()
	if crash < 0 {
		return
	}
	for _, r := range rounds[crash:] {
		s.end(r)
	}
	s.panics.Add(1)
	switch random.IntN(3) {
	case 0:
		panic("fly")
	case 1:
		runtime.Goexit()
	} // or it returns without completing them
}

// leftAlone fails if the context of f has ended while a caller waits for a round that is not
// complete.
func (s *storm) leftAlone(ctx context.Context, f *Flight[int, reading]) {
	if context.Cause(ctx) != ErrAbandoned {
		return
	}
	s.abandoned.Add(1)
	for _, r := range f.Rounds {
		shard := s.group.shard(r.Key)
		shard.mu.Lock()
		if !r.completed && r.callers != 0 {
			s.t.Errorf("a flight was cancelled while %d callers wait for key %d", r.callers, r.Key)
		}
		for n := r.takenIn; n != nil; n = n.prevTakenIn {
			if n.callers != 0 {
				s.t.Errorf("a flight was cancelled while %d callers that it has taken in wait for key %d",
					n.callers, r.Key)
			}
		}
		shard.mu.Unlock()
	}
}

// nap sometimes lets other goroutines run.
func nap(random *rand.Rand) {
	if random.IntN(3) == 0 {
		time.Sleep(time.Duration(random.IntN(int(200 * time.Microsecond))))
	}
}

// ask has random keys asked for and checks what comes.
func (s *storm) ask(random *rand.Rand, strict bool, counts *stormCounts) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch random.IntN(10) {
	case 0, 1:
		time.AfterFunc(time.Duration(random.IntN(int(300*time.Microsecond))), cancel)
	case 2:
		if random.IntN(5) == 0 {
			cancel()
		}
	}
	keys := random.Perm(stormKeys)[:1+random.IntN(20)]
	one := random.IntN(3) == 0
	if one {
		keys = keys[:1]
	}
	versions := make([]int64, len(keys))
	for i, key := range keys {
		if random.IntN(4) == 0 {
			s.versions[key].Add(1)
		}
		versions[i] = s.versions[key].Load()
	}
	asked := s.clock.Add(1)
	check := func(i int, result *reading, err, left error) {
		counts.asked.Add(1)
		switch {
		case left != nil:
			if ctx.Err() == nil || !errors.Is(left, context.Canceled) {
				s.t.Errorf("key %d: %v without reason", keys[i], left)
			}
			counts.left.Add(1)
			return
		case errors.Is(err, errStorm) || err == errNotCompleted:
			counts.failed.Add(1)
		case err != nil:
			s.t.Errorf("key %d: %v", keys[i], err)
		}
		if result.key != keys[i] || result.version < versions[i] {
			s.t.Errorf("key %d: asked at version %d, given %+v", keys[i], versions[i], *result)
		}
		if result.began <= asked {
			counts.shared.Add(1)
			if strict || err != nil {
				s.t.Errorf("key %d: asked at %d, given %+v, %v", keys[i], asked, *result, err)
			}
		}
	}
	if one {
		result, err := do(s.group, ctx, keys[0])
		if result == nil {
			check(0, nil, nil, err)
		} else {
			check(0, result, err, nil)
		}
		return
	}
	rounds, errs := doMany(s.group, ctx, keys)
	for i, r := range rounds {
		switch {
		case errs[i] != nil:
			check(i, nil, nil, errs[i])
		case r == nil:
			s.t.Errorf("key %d: neither round nor error", keys[i])
		default:
			check(i, &r.Result, r.Err, nil)
		}
	}
}

type stormCounts struct{ asked, left, failed, shared atomic.Int64 }

// Many callers of many overlapping sets of keys, some of which leave. First looks and flights fail,
// panic, exit, forget rounds, take in callers that have gathered, and complete the others bit by
// bit from several goroutines. A key never has two looks or flights at once. Every caller gets a
// result that began after its request, or, if it may be shared, has at least the version of the
// request. No flight is cancelled while a caller waits for it, and in the end nothing is kept.
func TestRoundsOfManyHoldInAStorm(t *testing.T) {
	for name, c := range map[string]struct {
		strict bool
		late   func(s *storm, r *reading) bool
	}{
		"nothing is shared": {true, func(*storm, *reading) bool { return false }},
		"current is shared": {false, func(s *storm, r *reading) bool { return s.versions[r.key].Load() == r.version }},
	} {
		t.Run(name, func(t *testing.T) {
			const callers = 64
			turns := 300
			if testing.Short() {
				turns = 30
			}
			s := newStorm(t, 20261, c.late)
			var counts stormCounts
			var asking sync.WaitGroup
			for i := range callers {
				random := rand.New(rand.NewPCG(s.seed, uint64(i)))
				asking.Go(func() {
					for range turns {
						s.ask(random, c.strict, &counts)
					}
				})
			}
			asking.Wait()
			s.group.flights.Wait() // those that all have left
			nothingKept(t, s.group)
			s.group.Close(errors.New("closed"))
			nothingKept(t, s.group)
			t.Logf("%d keys asked for: %d left, %d failed, %d shared; %d looks, %d rounds in %d flights, %d panics, "+
				"%d landings of abandoned flights",
				counts.asked.Load(), counts.left.Load(), counts.failed.Load(), counts.shared.Load(),
				s.looks.Load(), s.rounds.Load(), s.flights.Load(), s.panics.Load(), s.abandoned.Load())
			if asked, rounds := counts.asked.Load(), s.rounds.Load()+s.looks.Load(); rounds >= asked {
				t.Errorf("%d rounds for %d keys asked for: nothing was shared", rounds, asked)
			}
			for name, n := range map[string]int64{
				"left": counts.left.Load(), "failed": counts.failed.Load(), "looked": s.looks.Load(), "panicked": s.panics.Load(),
				"was abandoned": s.abandoned.Load(),
			} {
				if n == 0 {
					t.Errorf("never: %s", name)
				}
			}
			if !c.strict && counts.shared.Load() == 0 {
				t.Error("nothing was shared late")
			}
		})
	}
}

// Close in the middle of a storm: all callers return, with the cause or with the completed results,
// no look or flight continues after it, none begins, and nothing is kept.
func TestCloseOfManyHoldsInAStorm(t *testing.T) {
	for n := range 50 {
		cause := errors.New("closing")
		var running, after atomic.Int32
		enter := func() {
			running.Add(1)
			if after.Load() != 0 {
				t.Error("a look or a flight began after Close had returned")
			}
		}
		g := New(Hooks[int, int]{
			Inline: oneByOne(func(_ context.Context, r *Round[int, int]) bool {
				enter()
				defer running.Add(-1)
				return r.Key%3 == 0
			}),
			Run: func(ctx context.Context, f *Flight[int, int]) {
				enter()
				defer running.Add(-1)
				f.Complete(f.Rounds[:len(f.Rounds)/2])
				<-ctx.Done() // by leaving callers, or Close
				if c := context.Cause(ctx); c != ErrAbandoned && c != cause {
					t.Errorf("a flight was cancelled with %v", c)
				}
				f.Complete(f.Rounds[len(f.Rounds)/2:])
			},
			StillValid: func(*int) bool { return false },
			Caught:     func(any) error { return errStorm },
		})
		var asking sync.WaitGroup
		for i := range 100 {
			random := rand.New(rand.NewPCG(uint64(n), uint64(i)))
			asking.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if i%2 == 0 {
					time.AfterFunc(time.Duration(random.IntN(int(500*time.Microsecond))), cancel)
				}
				for ctx.Err() == nil {
					var errs []error
					if random.IntN(3) == 0 {
						_, err := do(g, ctx, random.IntN(10))
						errs = append(errs, err)
					} else {
						_, errs = doMany(g, ctx, random.Perm(10)[:1+random.IntN(9)])
					}
					for _, err := range errs {
						if err == cause {
							return
						}
						if err != nil && ctx.Err() == nil {
							t.Errorf("a caller got %v", err)
						}
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.New(rand.NewPCG(uint64(n), 1000)).IntN(int(300 * time.Microsecond))))
		g.Close(cause)
		after.Store(1)
		if n := running.Load(); n != 0 {
			t.Errorf("%d looks and flights after Close", n)
		}
		asking.Wait()
		nothingKept(t, g)
	}
}
