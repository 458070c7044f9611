package meter

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The test drops invalidations of random writes: either everything that the writer sends to Redis,
// or only the announcement to other processes. The meter samples every second write. Its interval
// must contain the true share of losses.
func TestLossRateIsMeasured(t *testing.T) {
	writes := 800
	// Own Redis and own clock: 1,000 writes a second on a machine under any load.
	on := synctest.Test
	if testenv.Accepting {
		writes, on = 60_000, func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	for _, c := range []struct {
		name       string
		rate       float64
		memoryOnly bool
		seed       uint64
	}{
		{"1 %", 0.01, false, 1},
		{"0.1 %", 0.001, false, 2},
		{"0 %", 0, false, 3},
		{"1 %, memory only", 0.01, true, 4},
	} {
		if c.rate == 0.001 && !testenv.Accepting { // 800 writes do not tell it from the others
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			on(t, func(t *testing.T) {
				f := &lossyFleet{t: t, prefix: "loss" + string(rune('a'+c.seed)), writes: writes}
				if testenv.Accepting {
					server := testenv.SharedRedis(t)
					f.client = func() *redis.Client { return server.Client(t) }
				} else {
					_, rdb := testenv.Mini(t)
					f.client = func() *redis.Client {
						o := *rdb.Options()
						another := redis.NewClient(&o)
						t.Cleanup(func() { another.Close() })
						return another
					}
				}
				lost := f.choose(c.rate, c.seed)
				steal := func(name string) bool { return lost[name] }
				f.thief = &thief{deletes: steal, announcements: steal}
				if c.memoryOnly {
					f.thief.deletes = never
				}
				f.run(seeded(c.seed))

				got, _ := f.m.Consistency(after)
				want := float64(f.thief.stolen.Load()) / float64(writes)
				s := f.m.Stats()
				t.Logf("lost %d of %d, %.4f %%; measured %v", f.thief.stolen.Load(), writes, 100*want, got)
				t.Logf("Redis %+v, memory %+v; late %d, failed %d, unanswered %d, not known %d", s.Results[0].Redis,
					s.Results[0].Memory, s.Results[0].Late, s.Results[0].Failed, s.Results[0].Unanswered,
					s.Results[0].NotKnown)
				if want < got.Low || want > got.High {
					t.Errorf("the true share is not within %.3g to %.3g", got.Low, got.High)
				}
				if c.rate == 0 && got.Different > 0 || c.rate == 0.01 && got.Different == 0 {
					t.Errorf("%d checks found a difference", got.Different)
				}
				if got.Samples < int64(writes)/5 || s.InFlight != 0 {
					t.Errorf("%d checks are decided, %d in flight", got.Samples, s.InFlight)
				}
				if testenv.Accepting { // the intervals of the three rates do not overlap
					other := map[float64][2]float64{0.01: {0.002, 1}, 0.001: {0.0001, 0.005}, 0: {0, 0.0005}}[c.rate]
					if got.Low < other[0] || got.High > other[1] {
						t.Errorf("the interval contains another rate: %v", got)
					}
				}
			})
		})
	}
}

const after = 300 * time.Millisecond

// lossyFleet is three readers, and a writer with a meter, each with its own client.
type lossyFleet struct {
	t      *testing.T
	client func() *redis.Client
	prefix string
	writes int // each of a different key
	thief  *thief
	d      *rows
	m      *Meter
}

// choose draws the keys whose invalidations are lost.
func (f *lossyFleet) choose(rate float64, seed uint64) map[string]bool {
	r := rand.New(rand.NewPCG(seed, 1))
	lost := make(map[string]bool)
	for key := range f.writes {
		if r.Float64() < rate {
			lost[f.prefix+nameOf(key)[len("cacheaside"):]] = true
		}
	}
	return lost
}

func (f *lossyFleet) join(rdb redis.UniversalClient) member {
	o := patient
	o.Prefix = f.prefix
	return join(f.t, rdb, f.d, o).hear(f.t)
}

func (f *lossyFleet) run(draw func() float64) {
	t := f.t
	f.d = newRows()
	keys := make([]int, f.writes)
	for i := range keys {
		keys[i] = i
		f.d.write(i, "old")
	}
	rdb := f.client()
	rdb.AddHook(f.thief)
	writer := f.join(rdb)
	readers := []member{f.join(f.client()), f.join(f.client()), f.join(f.client())}
	var err error
	f.m, err = newMeter(writer.cache, &Options{Share: 0.5, After: []time.Duration{after}, LoadRate: 1e6,
		MaxSamples: f.writes}, draw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.m.Close()
	for _, r := range readers { // so that the readers know their own copies
		testenv.Eventually(t, "the reader receives the first question", func() bool {
			return r.Stats().Bus.Questions > 0
		})
	}
	const ahead = 100
	// All readers read a while before the write: a later read of another key of the stripe could
	// remove a copy.
	read := func(from int) {
		for _, r := range readers {
			if _, err := r.GetMany(t.Context(), keys[min(from, len(keys)):min(from+ahead, len(keys))]); err != nil {
				t.Error(err)
			}
		}
	}
	read(0)
	time.Sleep(ahead * time.Millisecond)
	written := make(chan int, f.writes)
	var reading sync.WaitGroup
	reading.Go(func() { // every second key is read again soon after its write
		for key := range written {
			if key%2 == 0 {
				readers[key/2%len(readers)].Get(t.Context(), key)
			}
		}
	})
	began := time.Now()
	for key := range f.writes {
		if early := time.Duration(key)*time.Millisecond - time.Since(began); early > 5*time.Millisecond {
			// 1,000 a second
			time.Sleep(early)
		}
		if key%ahead == 0 {
			read(key + ahead)
		}
		f.d.write(key, "new")
		if err := writer.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		written <- key
	}
	close(written)
	reading.Wait()
	testenv.Eventually(t, "all writes are checked", func() bool {
		s := f.m.Stats()
		l := s.Results[0]
		return s.InFlight == 0 && l.Consistent+l.Different+l.Undecided == s.Sampled
	})
}
