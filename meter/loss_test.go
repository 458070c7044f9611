package meter

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// Invalidations are lost on purpose: of each write by chance, what its writer sends to Redis; or of that only what tells the other processes. The meter, which takes every second write, must tell the share of those that were lost, as the thief has counted it, within its interval.
func TestLossIsReadBack(t *testing.T) {
	server := testenv.SharedRedis(t)
	writes := 800
	if testenv.Accepting {
		writes = 60_000
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
			if !testenv.Accepting {
				t.Parallel()
			}
			f := &lossyFleet{t: t, server: server, prefix: "loss" + string(rune('a'+c.seed)), writes: writes}
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
			t.Logf("Redis %+v, memory %+v; late %d, failed %d, unanswered %d, not known %d", s.Looks[0].Redis, s.Looks[0].Memory, s.Looks[0].Late, s.Looks[0].Failed, s.Looks[0].Unanswered, s.Looks[0].NotKnown)
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
	}
}

const after = 300 * time.Millisecond

// lossyFleet is three readers, and a writer with a meter, each with its own client of a real server.
type lossyFleet struct {
	t      *testing.T
	server *testenv.Redis
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
	rdb := f.server.Client(t)
	rdb.AddHook(f.thief)
	writer := f.join(rdb)
	readers := []member{f.join(f.server.Client(t)), f.join(f.server.Client(t)), f.join(f.server.Client(t))}
	var err error
	f.m, err = newMeter(writer.cache, &Options{Share: 0.5, After: []time.Duration{after}, LoadRate: 1e6, MaxSamples: f.writes}, draw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.m.Close()
	for _, r := range readers { // so that they know what they have
		until(t, func() bool { return r.Stats().Channel.Questions > 0 })
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
	until(t, func() bool {
		s := f.m.Stats()
		l := s.Looks[0]
		return s.InFlight == 0 && l.Consistent+l.Different+l.Undecided == s.Sampled
	})
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	for began := time.Now(); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatal("it does not come about")
		}
	}
}

// What a meter costs at 1,000 writes a second, at its default share, in CPU time of the process (which is writer, readers and meter at once) and in commands of Redis.
func TestCostOfAMeter(t *testing.T) {
	server := testenv.SharedRedis(t)
	blocks, writes, unit := 2, 300, 250*time.Millisecond
	if testenv.Accepting {
		blocks, writes, unit = 8, 5_000, time.Second
	}
	d := newRows()
	const hot = 2_000
	for i := range hot {
		d.write(i, "value")
	}
	rdb := server.Client(t)
	writer := join(t, rdb, d, patient).hear(t)
	reader := join(t, server.Client(t), d, patient).hear(t)
	var with, without cost
	for range blocks {
		without.add(costOf(t, rdb, writer, reader, writes))
		m, err := New(writer.cache, &Options{After: []time.Duration{unit, 2 * unit, 3 * unit}}) // so that nearly all looks at the writes of a block are within it
		if err != nil {
			t.Fatal(err)
		}
		with.add(costOf(t, rdb, writer, reader, writes))
		m.Close()
		if s := m.Stats(); s.Writes < int64(writes) || s.Questions == 0 {
			t.Errorf("%+v", s)
		}
	}
	n := float64(blocks * writes)
	t.Logf("| meter | writes | CPU us/write | Redis commands/write | rows loaded/write |")
	t.Logf("| without | %d at 1,000/s | %.1f | %.3f | %.3f |", blocks*writes, without.cpu/n, without.commands/n, without.loads/n)
	t.Logf("| share 0.01, 3 looks | %d at 1,000/s | %.1f | %.3f | %.3f |", blocks*writes, with.cpu/n, with.commands/n, with.loads/n)
	if more := (with.commands - without.commands) / n; testenv.Accepting && more > 0.2 {
		t.Errorf("%.2f commands more for each write", more)
	}
}

type cost struct{ cpu, commands, loads float64 } // cpu in microseconds

func (c *cost) add(o cost) {
	c.cpu, c.commands, c.loads = c.cpu+o.cpu, c.commands+o.commands, c.loads+o.loads
}

func costOf(t *testing.T, rdb *redis.Client, writer, reader member, writes int) cost {
	began, before := time.Now(), costNow(t, rdb, writer, reader)
	for i := range writes {
		if ahead := time.Duration(i)*time.Millisecond - time.Since(began); ahead > 2*time.Millisecond {
			time.Sleep(ahead)
		}
		key := i * 7919 % 2_000
		if err := writer.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		reader.Get(t.Context(), key)
	}
	now := costNow(t, rdb, writer, reader)
	return cost{now.cpu - before.cpu, now.commands - before.commands, now.loads - before.loads}
}
