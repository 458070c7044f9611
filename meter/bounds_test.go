package meter

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestOptions(t *testing.T) {
	_, rdb := testenv.Mini(t)
	c, err := cacheaside.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for want, o := range map[string]Options{
		"Share":      {Share: 2},
		"Share ":     {Share: math.NaN()},
		"After":      {After: []time.Duration{time.Millisecond}},
		"After ":     {After: []time.Duration{time.Second, time.Second}},
		"After:":     {After: make([]time.Duration, 9)},
		"LoadRate":   {LoadRate: -1},
		"Patience":   {Patience: time.Millisecond},
		"MaxSamples": {MaxSamples: -1},
	} {
		if _, err := New(c, &o); err == nil || !strings.Contains(err.Error(), "Options."+strings.TrimSpace(want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
	m, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, nil); err == nil {
		t.Error("New accepts a second meter for one cache")
	}
	if err := m.Written(cacheaside.Key{Loader: "a b"}); err == nil {
		t.Error("Written accepts an invalid key")
	}
	m.Close()
	m.Close()
	again, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	bare, _ := cacheaside.NewLocal(nil)
	defer bare.Close()
	for _, c := range []*cacheaside.Cache{nil, bare} {
		if _, err := New(c, nil); err == nil {
			t.Error("New accepts a cache without Redis")
		}
	}
}

// Writes of loaders that this process lacks are not checked, and are counted as unreadable. A
// loader that another process lacks counts there as "no copy".
func TestUnknownLoadersAreUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, patient)
		defer f.close()
		f.m.Written(cacheaside.Key{Loader: "other", Text: "1"}, cacheaside.Key{Loader: "row", Version: "2", Text: "1"},
			cacheaside.Key{Loader: "row", Text: "one"}, cacheaside.Key{Loader: "row",
				All: true}, cacheaside.Key{Loader: "row", Text: "1", Group: true})
		if s := f.m.Stats(); s.Unreadable != 3 || s.Sampled != 3 || s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
		other, err := cacheaside.NewLoader(f.writer.cache, "own", f.d.get, nil)
		if err != nil {
			t.Fatal(err)
		}
		other.Invalidate(t.Context(), 1)
		if l := f.wait(); l.Consistent != 1 || l.Memory.None != 2 {
			t.Errorf("%+v", l)
		}
	})
}

func TestWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, noMemory)
		defer f.close()
		f.read(1, "old")
		f.lose(true, true)
		f.d.write(1, "new")
		f.invalidate(1)
		if l, want := f.wait(), (Result{Different: 1, Redis: Copies{Different: 1}}); l != want {
			t.Errorf("%+v", l)
		}
		f.lose(false, false)
		f.invalidate(1)
		if l := f.wait(); l.Consistent != 1 || l.Memory != (Copies{}) {
			t.Errorf("%+v", l)
		}
	})
}

// outage is a client hook. While it is on, all commands and dials fail.
type outage struct{ on atomic.Bool }

func (o *outage) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if o.on.Load() {
			return nil, syscall.ECONNREFUSED
		}
		return next(ctx, network, addr)
	}
}

func (o *outage) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if o.on.Load() {
			cmd.SetErr(syscall.ECONNREFUSED)
			return syscall.ECONNREFUSED
		}
		return next(ctx, cmd)
	}
}

func (o *outage) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if o.on.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(syscall.ECONNREFUSED)
			}
			return syscall.ECONNREFUSED
		}
		return next(ctx, cmds)
	}
}

func TestRedisIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		redisOut := &outage{}
		rdb.AddHook(redisOut)
		w := join(t, rdb, newRows(), cacheaside.Options{}).hear(t)
		defer w.cache.Close()
		m, err := newMeter(w.cache,
			&Options{After: []time.Duration{300 * time.Millisecond}, Patience: 600 * time.Millisecond}, all)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := w.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		redisOut.on.Store(true)
		testenv.Eventually(t, "the write is checked", func() bool { return m.Stats().Results[0].Undecided == 1 })
		if s := m.Stats(); s.Results[0].Failed != 1 || s.QuestionsFailed == 0 || s.Results[0].Consistent != 0 {
			t.Errorf("%+v", s)
		}
		if c, _ := m.Consistency(300 * time.Millisecond); c.Samples != 0 || c.High != 1 || c.NinesAtLeast() != 0 {
			t.Errorf("%v", c)
		}
	})
}

func TestOnCluster(t *testing.T) {
	server := testenv.SharedCluster(t)
	d := newRows()
	w := join(t, server.Client(t), d, patient).hear(t)
	r := join(t, server.Client(t), d, patient).hear(t)
	const after = time.Hour // long, so that no check runs before the test starts it
	m, err := newMeter(w.cache, &Options{After: []time.Duration{after}}, all)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	testenv.Eventually(t, "the reader receives the first question", func() bool { return r.Stats().Bus.Questions > 0 })
	const n = 20
	try := func(from int) (s Stats) {
		before := m.Stats()
		for key := from; key < from+n; key++ {
			d.write(key, "old")
			r.want(t, key, "old")
		}
		for key := from; key < from+n; key++ {
			d.write(key, "new")
			if key == from {
				m.Written(w.Key(key)) // without an invalidation
			} else if err := w.Invalidate(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		probes := m.due(time.Now().Add(after))
		if len(probes) != n {
			t.Fatalf("%d of %d probes are pending", len(probes), n)
		}
		m.ask(probes)
		s = m.Stats()
		l, was := &s.Results[0], before.Results[0]
		l.Different, l.Consistent, l.Failed, l.Unanswered =
			l.Different-was.Different, l.Consistent-was.Consistent, l.Failed-was.Failed, l.Unanswered-was.Unanswered
		l.Redis.Different, l.Memory.Different =
			l.Redis.Different-was.Redis.Different, l.Memory.Different-was.Memory.Different
		s.Asked -= before.Asked
		return s
	}
	good := func(s Stats) bool {
		l := s.Results[0]
		return l.Different == 1 && l.Consistent >= n/2 && l.Failed == 0 && s.Asked >= 2 && l.Redis.Different == 1 &&
			l.Memory.Different == 1
	}
	s := try(0)
	for began, from := time.Now(), n; !good(s) && time.Since(began) < testenv.Hang; from += n {
		if l := s.Results[0]; l.Different > 1 || l.Redis.Different > 1 || l.Memory.Different > 1 {
			break
		}
		t.Logf("retry, because the processes reply slowly: %+v", s) // they have Options.Patience
		s = try(from)
	}
	if !good(s) {
		t.Errorf("%+v", s)
	}
}

// A meter remembers a limited number of writes. Checks that run too late count as late and do not
// enter the result.
func TestPendingChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, patient)
		defer f.close()
		f.m.Close()
		m, err := newMeter(f.writer.cache, &Options{After: []time.Duration{time.Second, 2 * time.Second},
			MaxSamples: 300}, all)
		if err != nil {
			t.Fatal(err)
		}
		f.m = m
		for range 1000 {
			f.invalidate(1)
		}
		if s := m.Stats(); s.InFlight != 300 || s.Dropped != 700 || s.Sampled != 1000 {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Second)
		s := m.Stats()
		if l := s.Results; s.InFlight != 0 || l[0].Consistent != 300 || l[1].Consistent != 300 {
			t.Errorf("%+v", s)
		}
		for range maxQuestions { // exhaust the quota of questions
			m.questionSlots <- struct{}{}
		}
		f.invalidate(1)
		time.Sleep(5 * time.Second)
		for range maxQuestions {
			<-m.questionSlots
		}
		time.Sleep(5 * time.Second)
		s = m.Stats()
		if l := s.Results; l[0].Late != 1 || l[1].Late != 1 || l[0].Undecided != 1 || l[0].Consistent != 300 {
			t.Errorf("%+v", s)
		}
	})
}

// Malformed replies count as missing.
func TestMalformedRepliesCountAsMissing(t *testing.T) {
	for _, answer := range []string{"", "\x01\x01", "\x05", "\xff"} {
		if readable(answer, 1) {
			t.Errorf("%q", answer)
		}
		m := &Meter{results: make([]Result, 1)}
		m.count([]*probe{{sample: &sample{}, redis: measure.None}}, 1, 1, []string{answer}, nil)
		if l := m.results[0]; l.Consistent != 0 || l.Unanswered != 1 || m.stats.Malformed != 1 {
			t.Errorf("%q: %+v", answer, l)
		}
	}
}

// Any client that may publish can send questions. Their cost is bounded: the questions that a
// process replies to, the rows it loads for them, and the keys they leave in Redis.
func TestForeignQuestionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, patient)
		defer f.close()
		f.m.Close()
		stranger := measure.Of(f.writer.cache)
		r := f.r[0]
		q := measure.Question{ID: 1, Patience: time.Second}
		for key := range measure.MaxAsked {
			f.d.write(key, "old")
			r.want(t, key, "old")
			f.d.write(key, "new")
			q.Keys = append(q.Keys, measure.Asked{Loader: "row", Hash: r.Key(key).Hash()})
		}
		time.Sleep(time.Second)
		before := r.Stats()
		if _, err := stranger.Ask(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := r.Stats().CompareLoads - before.CompareLoads; n == 0 || n > 20+20 {
			t.Errorf("one question loads %d rows", n)
		}
		answers, err := stranger.Replies(t.Context(), 1)
		if err != nil || len(answers) != 2 {
			t.Fatalf("%q, %v", answers, err)
		}
		n := 0
		for _, v := range []byte(answers[0] + answers[1]) {
			if measure.Verdict(v) == measure.Unknown {
				n++
			}
		}
		if n < measure.MaxAsked-40 {
			t.Errorf("%d keys are reported as unknown, want at least those that were not loaded", n)
		}
		unknown := measure.Question{Patience: time.Second,
			Keys: []measure.Asked{{Loader: "none", Hash: 1}, {Loader: "row", Hash: 2}}}
		before = r.Stats()
		for id := range uint64(500) {
			unknown.ID = 100 + id
			if _, err := stranger.Ask(t.Context(), unknown); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		s := r.Stats()
		if n, left := s.Bus.Questions-before.Bus.Questions, s.Bus.Unanswered-before.Bus.Unanswered; n != 500 ||
			left < 400 || s.CompareLoads != before.CompareLoads {
			t.Errorf("%d questions, %d unanswered, %d loads", n, left, s.CompareLoads-before.CompareLoads)
		}
		time.Sleep(time.Minute)
		keys := func() (n int) { // the number of reply keys in Redis
			names, err := f.rdb.Keys(t.Context(), "cacheaside::meter:*").Result()
			if err != nil {
				t.Fatal(err)
			}
			return len(names)
		}
		if n := keys(); n != 0 {
			t.Errorf("%d reply keys are left in Redis", n)
		}
		// A client publishes a question without creating the key for the replies.
		forged := "\xd1" + `{"id":9,"patience":1000000000}`
		if err := f.rdb.Publish(t.Context(), "cacheaside::invalidations", forged).Err(); err != nil {
			t.Fatal(err)
		}
		before = r.Stats()
		synctest.Wait()
		time.Sleep(time.Second)
		if n := keys(); n != 0 || r.Stats().Bus.Questions != 1+before.Bus.Questions &&
			before.Bus.Questions == s.Bus.Questions {
			t.Errorf("%d reply keys are left", n)
		}
	})
}

// A member drops its work for questions whose meter is closed.
func TestClosedMeterEndsQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, patient)
		f.read(1, "old")
		f.lose(true, true)
		f.d.write(1, "new")
		f.invalidate(1)
		f.d.loading(func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		})
		time.Sleep(1300 * time.Millisecond)
		began := time.Now()
		f.close()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Close takes %v", took)
		}
	})
}

// The interval of Clopper and Pearson matches values from tables and has the stated coverage.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		k, n      int64
		low, high float64
	}{
		{0, 0, 0, 1}, {0, 10, 0, 0.3085}, {1, 10, 0.002529, 0.4450}, {5, 10, 0.1871, 0.8129}, {10, 10, 0.6915, 1}, {0, 1000, 0, 0.003682}, {10, 1000, 0.004805, 0.018314}, {0, 1_000_000_000, 0, 3.6889e-9}, {500_000, 1_000_000, 0.49902, 0.50098},
	} {
		low, high := interval(c.k, c.n)
		near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-3*want+1e-12 }
		if !near(low, c.low) || !near(high, c.high) {
			t.Errorf("%d of %d: %.6g to %.6g, want %.6g to %.6g", c.k, c.n, low, high, c.low, c.high)
		}
	}
	const n = 200
	for _, p := range []float64{0.001, 0.01, 0.03, 0.2, 0.5, 0.97} {
		covered := 0.0
		for k := range int64(n + 1) {
			if low, high := interval(k, n); low <= p && p <= high {
				a, _ := math.Lgamma(n + 1)
				b, _ := math.Lgamma(float64(k) + 1)
				c, _ := math.Lgamma(float64(n-k) + 1)
				covered += math.Exp(a - b - c + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
			}
		}
		if covered < 0.95 {
			t.Errorf("the interval contains a share of %v in %v of the cases", p, covered)
		}
	}
	c := Consistency{Samples: 1000, Different: 1, Share: 0.001, High: 0.01}
	if c.Nines() != 3 || c.NinesAtLeast() != 2 || !strings.Contains(fmt.Sprint(c), "3.0 nines, at least 2.0") {
		t.Errorf("%v", c)
	}
	// The example of the documentation; 3.4 would exceed 3.35.
	c = Result{Consistent: 41200, Different: 10}.consistency()
	want := "10 of 41210 different, so 0.00024 (0.00012 to 0.00045, 95 %): 3.6 nines, at least 3.3; 0 undecided"
	if !strings.HasSuffix(c.String(), want) {
		t.Errorf("%v, want %s", c, want)
	}
}

// Each key is written twice, once without an invalidation. The meter finds half of the checks
// different.
func TestConsistency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, patient)
		defer f.close()
		f.invalidate(1)
		if l := f.wait(); l.Consistent != 1 || l.Different != 0 {
			t.Errorf("%+v", l)
		}
		f.read(1, "old")
		f.d.write(1, "new")
		if err := f.m.Written(f.writer.Key(1)); err != nil {
			t.Error(err)
		}
		if l := f.wait(); l.Consistent != 1 || l.Different != 1 {
			t.Errorf("%+v", l)
		}
		if c, ok := f.m.Consistency(time.Second); c.Different != 1 || c.Samples != 2 || !ok {
			t.Errorf("%v, %v", c, ok)
		}
	})
}
