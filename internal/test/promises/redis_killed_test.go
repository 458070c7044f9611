package promises

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Redis is killed, or hangs, while two processes read and one of them also writes. Then it is back,
// empty if it was killed. Under each policy the test checks the waits, the loads, that no value is
// served after an acknowledged invalidation, and how soon Redis is used again.
func TestRedisKilledUnderLoad(t *testing.T) { testBlackout(t, "killed") }

func TestRedisHungUnderLoad(t *testing.T) { testBlackout(t, "hung") }

func testBlackout(t *testing.T, how string) {
	var out figures
	defer out.print(t)
	t.Run("all", func(t *testing.T) {
		for policy, name := range []string{"LoadWhenDown", "StaleWhenDown", "FailWhenDown"} {
			t.Run(name, func(t *testing.T) {
				if !accepting {
					t.Parallel() // reported figures come from one run at a time
				}
				o := newBlackout(t, cacheaside.DownPolicy(policy), how == "hung")
				o.run(t)
				o.report(&out, fmt.Sprintf("%s, %s:", how, name))
				o.check(t)
			})
		}
	})
}

const (
	blackoutKeys    = 1000
	blackoutReaders = 32 // in each process
	blackoutLoad    = 5 * time.Millisecond
	// The return of Redis is noticed within this time, plus blackoutDial.
	blackoutReturn = time.Second
	// After as many failed dials as its pool has connections, go-redis does not dial for this time.
	blackoutDial = time.Second
)

// blackoutTimeout bounds loads. No load needs this long.
const blackoutTimeout = time.Minute

// blackout is one run.
type blackout struct {
	server *testenv.Redis
	policy cacheaside.DownPolicy
	hung   bool
	o      cacheaside.Options
	think  time.Duration // of a reader between two reads
	pause  time.Duration // of the writer
	warm   time.Duration
	// Of the outage; without reported figures, only after all processes know of it.
	length time.Duration

	db     *bigTable
	gauges [2]gauge
	p      [2]reader
	// Of process 0; the other only reads, so it notices the return of Redis by its own probes.
	box   outbox
	acks  [blackoutKeys]atomic.Int64 // versions whose invalidations are acknowledged, by process 0
	heard [blackoutKeys]atomic.Int64 // versions that both processes must have received

	// The start of the outage, the time from which all processes know of it, and its end, in Unix
	// nanoseconds; 0: in the future.
	began, open, ended atomic.Int64

	parts [2 * blackoutReaders]blackoutSeen
	all   blackoutSeen
	back  [2]comeback
	mend  time.Duration // until the share of hits has recovered
}

// blackoutSeen contains the results of a goroutine, by the start of the read.
type blackoutSeen struct {
	before, opening, open, after seen // opening: the policy may not be in force
	// Excused: old values during the outage, if the policy allows them.
	stale, excused int
	answered       int // reads of open that ended after the outage
}

// comeback records how a process returns to Redis.
type comeback struct {
	hit  time.Duration // the first hit in Redis after its return
	down time.Duration // the last round that did not use it; 0: none after its return
}

func newBlackout(t *testing.T, policy cacheaside.DownPolicy, hung bool) *blackout {
	o := &blackout{server: testenv.StartRedis(t), policy: policy, hung: hung, think: 25 * time.Millisecond,
		pause: 5 * time.Millisecond, warm: 400 * time.Millisecond, length: 500 * time.Millisecond}
	o.o = cacheaside.Options{
		MaxLoads: 20, MaxStaleness: 300 * time.Millisecond, QueueTimeout: testenv.Hang,
		RedisTimeout: 500 * time.Millisecond, ReadTimeout: 250 * time.Millisecond,
	}
	if accepting {
		o.think, o.pause, o.warm, o.length = 2*time.Millisecond, 25*time.Millisecond, 3*time.Second, 20*time.Second
		o.o.MaxStaleness, o.o.QueueTimeout = 2*time.Second, time.Second // the defaults
	}
	o.db = newRows(blackoutKeys, 0)
	for i := range o.p {
		o.p[i] = newReader(t, o.server, o.gauges[i].of(o.db), o.o,
			&cacheaside.LoaderOptions{TTL: time.Minute, RedisDown: policy, LoadTimeout: blackoutTimeout})
		// Memory has all rows, including those that are not read again before they are out of date.
		waitFor(t, func() bool {
			// On a busy machine a trip may take too long.
			_, err := o.p[i].GetMany(t.Context(), upTo(blackoutKeys))
			return err == nil
		})
	}
	o.db.takes.Store(int64(blackoutLoad))
	return o
}

// outbox contains the invalidations that a process still has to do.
type outbox struct {
	mu   sync.Mutex
	rows map[int]int64 // the newest version of each key
}

func (o *outbox) put(key int, version int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rows == nil {
		o.rows = make(map[int]int64)
	}
	o.rows[key] = max(o.rows[key], version)
}

func (o *outbox) take() map[int]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	rows := o.rows
	o.rows = nil
	return rows
}

// write changes a row and leaves its invalidation to the outbox.
func (o *blackout) write(r *rand.Rand) {
	key := r.IntN(blackoutKeys)
	o.box.put(key, o.db.rows[key].Add(1))
	time.Sleep(o.pause)
}

// deliver repeats the invalidations of the outbox until they are acknowledged.
func (o *blackout) deliver(ctx context.Context, later *sync.WaitGroup) {
	rows := o.box.take()
	if len(rows) == 0 {
		time.Sleep(5 * time.Millisecond)
		return
	}
	keys := make([]int, 0, len(rows))
	for key := range rows {
		keys = append(keys, key)
	}
	if o.p[0].Invalidate(ctx, keys...) != nil {
		for key, version := range rows {
			o.box.put(key, version)
		}
		time.Sleep(50 * time.Millisecond)
		return
	}
	for key, version := range rows {
		raise(&o.acks[key], version)
	}
	later.Go(func() { // with a margin, because clocks are read on both sides
		time.Sleep(o.o.MaxStaleness + 50*time.Millisecond)
		for key, version := range rows {
			raise(&o.heard[key], version)
		}
	})
}

// read is one read of a process.
func (o *blackout) read(ctx context.Context, i int, part *blackoutSeen, key int) {
	own, heard := int64(0), o.heard[key].Load()
	if i == 0 {
		own = o.acks[key].Load()
	}
	began := time.Now()
	version, past, err := o.get(ctx, i, key)
	wait := time.Since(began)
	of, maySeeOld := o.phase(part, began, began.Add(wait))
	// For example before it has noticed the return of Redis, or if a trip takes too long on a busy
	// machine.
	maySeeOld = maySeeOld || past
	of.add(wait, err)
	if ended := o.ended.Load(); of == &part.open && err == nil && ended > 0 && began.Add(wait).UnixNano() >= ended {
		part.answered++
	}
	switch {
	case err != nil || version >= max(own, heard):
	case version >= own && maySeeOld && o.policy == cacheaside.StaleWhenDown:
		part.excused++
	default:
		part.stale++
	}
}

// get is one read of a process. past reports whether any read of that process bypassed Redis at the
// same time or got an error from it.
func (o *blackout) get(ctx context.Context, i, key int) (version int64, past bool, err error) {
	c := &readerOf(o.p[i].Loader).Counters
	before := c.RedisErrors.Load() + c.RedisDown.Load()
	version, err = o.p[i].Get(ctx, key)
	return version, c.RedisErrors.Load()+c.RedisDown.Load() != before, err
}

// phase returns the phase that a read belongs to, by its start, and whether StaleWhenDown may have
// served it without Redis.
func (o *blackout) phase(part *blackoutSeen, from, to time.Time) (of *seen, down bool) {
	began, open, ended := o.began.Load(), o.open.Load(), o.ended.Load()
	switch at := from.UnixNano(); {
	case began == 0 || at < began:
		return &part.before, began > 0 && to.UnixNano() >= began
	case ended > 0 && at > ended:
		return &part.after, false
	case open == 0 || at < open:
		return &part.opening, true
	default:
		return &part.open, true
	}
}

// patience is the longest wait of a read according to the comments of Options: its turn to read, a
// lease, its turn to load, the load, and the store.
func (o *blackout) patience() time.Duration {
	return o.o.ReadTimeout + 2*o.o.RedisTimeout + o.o.QueueTimeout + blackoutLoad + 2*o.o.RedisTimeout
}

// noticed is the time within which the return of Redis must be noticed.
func (o *blackout) noticed() time.Duration { return blackoutReturn + blackoutDial }

func (o *blackout) run(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	zipf := make([]*rand.Zipf, 2*blackoutReaders)
	stopReaders := swarm(2*blackoutReaders, 1, func(g int, r *rand.Rand) {
		if zipf[g] == nil {
			zipf[g] = demand(r, blackoutKeys)
		}
		o.read(ctx, g%2, &o.parts[g], int(zipf[g].Uint64()))
		time.Sleep(o.think)
	})
	var later sync.WaitGroup
	stopWriters := swarm(1, 2, func(_ int, r *rand.Rand) { o.write(r) })
	stopOutboxes := swarm(1, 3, func(int, *rand.Rand) { o.deliver(ctx, &later) })
	defer func() {
		stopWriters()
		stopReaders()
		stopOutboxes()
		later.Wait()
		for g := range o.parts {
			o.all.merge(&o.parts[g])
		}
	}()

	time.Sleep(o.warm / 2)
	last := o.hits()
	time.Sleep(o.warm / 2)
	rate := o.hits().share(last)
	o.began.Store(time.Now().UnixNano())
	o.fall()
	o.known(t)
	time.Sleep(o.length)
	o.ended.Store(time.Now().UnixNano())
	o.rise(t)
	o.watch(0.9 * rate)
	stopWriters()
	o.converge(t)
}

// known waits until no process trusts its memory or waits for Redis. After MaxStaleness all reads
// use Redis, so the first few fail soon after that.
func (o *blackout) known(t *testing.T) {
	fell := time.Now()
	if !accepting {
		for i := range o.p {
			waitFor(t, func() bool { return !reached(o.p[i].cache) && o.p[i].Stats().Bus.Trusted == 0 })
		}
	} else {
		time.Sleep(o.o.MaxStaleness + 3*o.o.ReadTimeout + o.o.RedisTimeout)
		o.length -= time.Since(fell)
	}
	o.open.Store(time.Now().UnixNano())
}

func (o *blackout) fall() {
	if o.hung {
		o.server.Pause()
	} else {
		o.server.Kill()
	}
}

func (o *blackout) rise(t *testing.T) {
	if o.hung {
		o.server.Resume()
	} else {
		o.server.Restart(t)
	}
}

// blackoutHits counts hits in the caches, and reads.
type blackoutHits struct{ hits, reads int64 }

func (o *blackout) hits() (h blackoutHits) {
	for i := range o.p {
		s := o.p[i].Stats()
		h.hits += s.MemoryHits + s.RedisHits
		h.reads += s.Gets
	}
	return h
}

func (b blackoutHits) share(since blackoutHits) float64 {
	return float64(b.hits-since.hits) / float64(max(b.reads-since.reads, 1))
}

// watch records how the processes return, for at least two seconds if figures are reported.
func (o *blackout) watch(rate float64) {
	least, most := time.Duration(0), testenv.Hang
	if accepting {
		least, most = 2*time.Second, 20*time.Second
	}
	began := time.Now()
	var first, last [2]cacheaside.Stats
	for i := range o.p {
		first[i] = o.p[i].Stats()
		last[i] = first[i]
	}
	window, from := began, o.hits()
	for since := time.Duration(0); since < least || (o.mend == 0 || o.back[0].hit == 0 || o.back[1].hit == 0) &&
		since < most; since = time.Since(began) {
		time.Sleep(5 * time.Millisecond)
		for i := range o.p {
			now := o.p[i].Stats()
			if o.back[i].hit == 0 && now.RedisHits > first[i].RedisHits {
				o.back[i].hit = time.Since(began)
			}
			if now.RedisDown > last[i].RedisDown {
				o.back[i].down = time.Since(began)
			}
			last[i] = now
		}
		if time.Since(window) < 100*time.Millisecond {
			continue
		}
		now := o.hits()
		if o.mend == 0 && now.share(from) >= rate {
			o.mend = time.Since(began)
		}
		window, from = time.Now(), now
	}
}

// converge waits until all messages are delivered and received. Then both processes have the rows
// of the database.
func (o *blackout) converge(t *testing.T) {
	waitFor(t, func() bool {
		for key := range blackoutKeys {
			if max(o.acks[key].Load(), 1) < o.db.rows[key].Load() {
				return false
			}
		}
		return true
	})
	time.Sleep(o.o.MaxStaleness + 100*time.Millisecond)
	for i := range o.p {
		for key := range blackoutKeys {
			version, past, err := o.get(t.Context(), i, key)
			for began := time.Now(); past && time.Since(began) < testenv.Hang; {
				version, past, err = o.get(t.Context(), i, key)
			}
			if err != nil || version != o.db.rows[key].Load() {
				t.Errorf("at the end process %d has version %d of a row, want %d; %v",
					i, version, o.db.rows[key].Load(), err)
				return
			}
		}
	}
}

func (b *blackoutSeen) merge(o *blackoutSeen) {
	b.before.merge(&o.before)
	b.opening.merge(&o.opening)
	b.open.merge(&o.open)
	b.after.merge(&o.after)
	b.stale += o.stale
	b.excused += o.excused
	b.answered += o.answered
}

func (o *blackout) report(out *figures, name string) {
	s := &o.all
	var down, stale, loads int64
	for i := range o.p {
		st := o.p[i].Stats()
		down, stale, loads = down+st.RedisDown, stale+st.Stale, loads+st.LoadCalls
	}
	out.add("%-22s %v: reads before, in the first moments, in the rest of the outage and after it %d, %d, %d, %d; "+
		"errors %s | %s | %s | %s",
		name, o.length, len(s.before.waits), len(s.opening.waits), len(s.open.waits), len(s.after.waits),
		s.before.errors(), s.opening.errors(), s.open.errors(), s.after.errors())
	out.add("%-22s longest waits %v | %v | %v (p99.9 %v) | %v, at most %v allowed; loads %d, at once %d and %d of "+
		"%d; rounds past Redis %d, stale by policy %d (%d reads of what another process had invalidated), wrongly "+
		"stale %d",
		"", quantile(s.before.waits, 1), quantile(s.opening.waits, 1), quantile(s.open.waits, 1),
		quantile(s.open.waits, 0.999), quantile(s.after.waits, 1), o.patience(),
		loads, o.gauges[0].most.Load(), o.gauges[1].most.Load(), o.o.MaxLoads, down, stale, s.excused, s.stale)
	out.add("%-22s after its return: first hits in Redis after %v, and %v in the one that only reads, last round "+
		"past it after %v and %v, hits as before after %v",
		"", ms(o.back[0].hit), ms(o.back[1].hit), ms(o.back[0].down), ms(o.back[1].down), ms(o.mend))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func (o *blackout) check(t *testing.T) {
	s := &o.all
	if s.stale > 0 {
		t.Errorf("%d reads return invalidated values", s.stale)
	}
	for i := range o.gauges {
		if most := o.gauges[i].most.Load(); most > int64(o.o.MaxLoads) {
			t.Errorf("process %d makes %d concurrent loads", i, most)
		}
	}
	kinds := []string{redisDown}
	if o.policy == cacheaside.LoadWhenDown {
		kinds = nil
	}
	s.before.only(t, kinds...)
	s.opening.only(t, kinds...)
	s.open.only(t, kinds...)
	s.after.only(t, kinds...)
	// TestGatheredWhileRedisHangs and others test the waits for late commands, with their own
	// clock.
	if accepting {
		o.checkWaits(t)
	}
	o.checkReturn(t)
	// Memory is no longer trusted.
	if in := len(s.open.waits) - s.answered; o.policy == cacheaside.FailWhenDown &&
		(in == 0 || len(s.open.failed)*100 < in*99) {
		t.Errorf("of %d reads that end in the outage only %d fail", in, len(s.open.failed))
	}
	if o.policy == cacheaside.StaleWhenDown && s.open.errorShare() > 0.5 {
		t.Errorf("%.2f of the reads fail, want at most half", s.open.errorShare())
	}
}

// checkWaits: no read waits longer than documented, and hardly any waits for Redis after it is
// known to be unreachable.
func (o *blackout) checkWaits(t *testing.T) {
	for _, waits := range [][]time.Duration{o.all.before.waits, o.all.opening.waits, o.all.open.waits,
		o.all.after.waits} {
		if longest := quantile(waits, 1); longest > o.patience()+time.Second {
			t.Errorf("a read takes %v, want at most %v", longest, o.patience())
		}
	}
	quick := 20 * time.Millisecond
	// A read may need two loads of the key, if it comes during a load, and each has to wait for its
	// turn.
	if o.policy == cacheaside.LoadWhenDown {
		quick += 2 * blackoutLoad * (1 + blackoutReaders/20)
	}
	if p := quantile(o.all.open.waits, 0.99); p > quick {
		t.Errorf("while Redis is known to be unreachable, the p99 of the reads is %v, want at most %v", p, quick)
	}
}

func (o *blackout) checkReturn(t *testing.T) {
	for i, b := range o.back {
		if b.hit == 0 || accepting && b.hit > o.noticed() {
			t.Errorf("process %d has its first hit in Redis after %v", i, b.hit)
		}
		if accepting && b.down > o.noticed() {
			t.Errorf("process %d still bypasses Redis after %v", i, b.down)
		}
	}
	if o.mend == 0 {
		t.Error("the share of hits has not recovered")
	}
}
