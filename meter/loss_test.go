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

// Invalidations are lost on purpose: of each write by chance, what its writer sends to Redis; or of
// that only what tells the other processes. The meter, which takes every second write, must tell
// the share of those that were lost, as the thief has counted it, within its interval.
func TestLossIsReadBack(t *testing.T) {
	writes := 800
	on := synctest.Test // with a Redis, and on a clock, of its own: 1,000 writes a second however busy the machine is
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
				t.Logf("Redis %+v, memory %+v; late %d, failed %d, unanswered %d, not known %d", s.Results[0].Redis, s.Results[0].Memory, s.Results[0].Late, s.Results[0].Failed, s.Results[0].Unanswered, s.Results[0].NotKnown)
				if want < got.Low || want > got.High {
					t.Errorf("not within %.3g to %.3g", got.Low, got.High)
				}
				if c.rate == 0 && got.Different > 0 || c.rate == 0.01 && got.Different == 0 {
					t.Errorf("%d are different", got.Different)
				}
				if got.Samples < int64(writes)/5 || s.InFlight != 0 {
					t.Errorf("%d are decided, %d in flight", got.Samples, s.InFlight)
				}
				if testenv.Accepting { // the three are told apart
					other := map[float64][2]float64{0.01: {0.002, 1}, 0.001: {0.0001, 0.005}, 0: {0, 0.0005}}[c.rate]
					if got.Low < other[0] || got.High > other[1] {
						t.Errorf("not told from other rates: %v", got)
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
	writes int // each of another key
	thief  *thief
	d      *rows
	m      *Meter
}

// choose draws whose invalidations are lost.
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
	f.m, err = newMeter(writer.cache, &Options{Share: 0.5, After: []time.Duration{after}, LoadRate: 1e6, MaxSamples: f.writes}, draw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.m.Close()
	for _, r := range readers { // so that they know what they have
		testenv.Eventually(t, "it is asked who is there", func() bool { return r.Stats().Bus.Questions > 0 })
	}
	const ahead = 100
	read := func(from int) { // by all, a while before they are written: later, another key of the same stripe might have ended a copy
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
	reading.Go(func() { // every second is read again, soon
		for key := range written {
			if key%2 == 0 {
				readers[key/2%len(readers)].Get(t.Context(), key)
			}
		}
	})
	began := time.Now()
	for key := range f.writes {
		if early := time.Duration(key)*time.Millisecond - time.Since(began); early > 5*time.Millisecond { // 1,000 a second
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
	testenv.Eventually(t, "all are looked at", func() bool {
		s := f.m.Stats()
		l := s.Results[0]
		return s.InFlight == 0 && l.Consistent+l.Different+l.Undecided == s.Sampled
	})
}
