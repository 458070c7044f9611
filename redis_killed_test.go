package cacheaside

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Redis is killed, or hangs, while two processes read and one of them writes, too; then it is back,
// empty if it was killed. Under each policy: how long anybody waits, what the database is asked
// for, that nothing is served that an acknowledged invalidation has ended, and how soon Redis is
// used again.
func TestRedisKilledUnderLoad(t *testing.T) { testBlackout(t, "killed") }

func TestRedisHungUnderLoad(t *testing.T) { testBlackout(t, "hung") }

func testBlackout(t *testing.T, how string) {
	var out figures
	defer out.print(t)
	t.Run("all", func(t *testing.T) {
		for policy, name := range []string{"LoadWhenDown", "StaleWhenDown", "FailWhenDown"} {
			t.Run(name, func(t *testing.T) {
				if !accepting {
					t.Parallel() // where the figures are reported, they are of one at a time
				}
				o := newBlackout(t, DownPolicy(policy), how == "hung")
				o.run(t)
				o.report(&out, fmt.Sprintf("%s, %s:", how, name))
				o.check(t)
			})
		}
	})
}

const (
	blackoutKeys    = 1000
	blackoutReaders = 32 // of each process
	blackoutLoad    = 5 * time.Millisecond
	blackoutReturn  = time.Second // within which the return of Redis is to be noticed, beside
	blackoutDial    = time.Second // how long go-redis does not dial, when as many dials as its pool has connections have failed
)

// blackoutTimeout bounds loads. No load needs as long.
const blackoutTimeout = time.Minute

// blackout is one run.
type blackout struct {
	server *testenv.Redis
	policy DownPolicy
	hung   bool
	o      Options
	think  time.Duration // of a reader between two reads
	pause  time.Duration // of the writer
	warm   time.Duration
	length time.Duration // of the outage; where no figures are reported, only after all know of it

	db     *bigTable
	gauges [2]gauge
	p      [2]reader
	box    outbox                     // of process 0; the other only reads, so nothing but its own looking tells it that Redis is back
	acks   [blackoutKeys]atomic.Int64 // versions whose invalidations have been acknowledged, by process 0
	heard  [blackoutKeys]atomic.Int64 // versions that both processes must have heard of

	began, open, ended atomic.Int64 // the outage, from when on all know of it, and its end, Unix nanoseconds; 0: not yet

	parts [2 * blackoutReaders]blackoutSeen
	all   blackoutSeen
	back  [2]comeback
	mend  time.Duration // until the share of hits was what it had been
}

// blackoutSeen is what a goroutine has seen, by when the read began.
type blackoutSeen struct {
	before, opening, open, after seen // opening: the policy has not to be in force yet
	stale, excused               int  // excused: old values during the outage, where that is the policy
	answered                     int  // of open, when the outage was over
}

// comeback is how a process has come back to Redis.
type comeback struct {
	hit  time.Duration // the first hit in Redis after its return
	down time.Duration // the last round that did not ask it; 0: none after its return
}

func newBlackout(t *testing.T, policy DownPolicy, hung bool) *blackout {
	o := &blackout{server: testenv.StartRedis(t), policy: policy, hung: hung, think: 25 * time.Millisecond, pause: 5 * time.Millisecond, warm: 400 * time.Millisecond, length: 500 * time.Millisecond}
	o.o = Options{MaxLoads: 20, MaxStaleness: 300 * time.Millisecond, QueueTimeout: testenv.Hang}
	if accepting {
		o.think, o.pause, o.warm, o.length = 2*time.Millisecond, 25*time.Millisecond, 3*time.Second, 20*time.Second
		o.o.MaxStaleness, o.o.QueueTimeout = 0, 0
	}
	o.o = o.o.withDefaults()
	o.db = newRows(blackoutKeys, 0)
	for i := range o.p {
		o.p[i] = newReader(t, o.server, o.gauges[i].of(o.db), o.o, &LoaderOptions{TTL: time.Minute, RedisDown: policy, LoadTimeout: blackoutTimeout})
		waitFor(t, func() bool { // memory has all rows, also those that will not be read again before they are out of date
			_, err := o.p[i].GetMany(t.Context(), upTo(blackoutKeys)) // on a busy machine a trip may take too long
			return err == nil
		})
	}
	o.db.takes.Store(int64(blackoutLoad))
	return o
}

// outbox is what a process has still to invalidate.
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

// write changes a row, and leaves its invalidation to the outbox.
func (o *blackout) write(r *rand.Rand) {
	key := r.IntN(blackoutKeys)
	o.box.put(key, o.db.rows[key].Add(1))
	time.Sleep(o.pause)
}

// deliver invalidates what is in the outbox, again and again until it is acknowledged.
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
	later.Go(func() { // a little later than promised: clocks are read on both sides
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
	maySeeOld = maySeeOld || past // as while it does not know yet that Redis is back, or where a machine is so busy that a trip takes too long
	of.add(wait, err)
	if ended := o.ended.Load(); of == &part.open && err == nil && ended > 0 && began.Add(wait).UnixNano() >= ended {
		part.answered++
	}
	switch {
	case err != nil || version >= max(own, heard):
	case version >= own && maySeeOld && o.policy == StaleWhenDown:
		part.excused++
	default:
		part.stale++
	}
}

// get is one read of a process, and whether anybody's in that process passed Redis by meanwhile, or
// got an error from there.
func (o *blackout) get(ctx context.Context, i, key int) (version int64, past bool, err error) {
	c := &o.p[i].rows.Counters
	before := c.RedisErrors.Load() + c.RedisDown.Load()
	version, err = o.p[i].Get(ctx, key)
	return version, c.RedisErrors.Load()+c.RedisDown.Load() != before, err
}

// phase tells where a read is counted, by when it began, and whether it may have been answered
// without Redis by StaleWhenDown.
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

// patience is the longest that a read may wait, by the comments of Options: its turn to read, a
// lease, its turn to load, the load, and its being stored.
func (o *blackout) patience() time.Duration {
	return o.o.ReadTimeout + 2*o.o.RedisTimeout + o.o.QueueTimeout + blackoutLoad + 2*o.o.RedisTimeout
}

// noticed is how soon the return of Redis must have been noticed.
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

// known waits until no process trusts its memory, nor waits for Redis any more: after MaxStaleness
// all reads ask it, so the first few have failed soon after that.
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

// blackoutHits are answers of the caches, and reads.
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

// watch looks how the processes come back; where the figures are reported, for two seconds and
// more.
func (o *blackout) watch(rate float64) {
	least, most := time.Duration(0), testenv.Hang
	if accepting {
		least, most = 2*time.Second, 20*time.Second
	}
	began := time.Now()
	var first, last [2]Stats
	for i := range o.p {
		first[i] = o.p[i].Stats()
		last[i] = first[i]
	}
	window, from := began, o.hits()
	for since := time.Duration(0); since < least || (o.mend == 0 || o.back[0].hit == 0 || o.back[1].hit == 0) && since < most; since = time.Since(began) {
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

// converge waits until all has been delivered and heard of. Then both processes have what the
// database has.
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
				t.Errorf("in the end process %d has version %d of a row at %d, %v", i, version, o.db.rows[key].Load(), err)
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
	out.add("%-22s %v: reads before, in the first moments, in the rest of the outage and after it %d, %d, %d, %d; errors %s | %s | %s | %s",
		name, o.length, len(s.before.waits), len(s.opening.waits), len(s.open.waits), len(s.after.waits), s.before.errors(), s.opening.errors(), s.open.errors(), s.after.errors())
	out.add("%-22s longest waits %v | %v | %v (p99.9 %v) | %v, at most %v allowed; loads %d, at once %d and %d of %d; rounds past Redis %d, stale by policy %d (%d reads of what another process had invalidated), wrongly stale %d",
		"", quantile(s.before.waits, 1), quantile(s.opening.waits, 1), quantile(s.open.waits, 1), quantile(s.open.waits, 0.999), quantile(s.after.waits, 1), o.patience(),
		loads, o.gauges[0].most.Load(), o.gauges[1].most.Load(), o.o.MaxLoads, down, stale, s.excused, s.stale)
	out.add("%-22s after its return: first hits in Redis after %v, and %v in the one that only reads, last round past it after %v and %v, hits as before after %v",
		"", ms(o.back[0].hit), ms(o.back[1].hit), ms(o.back[0].down), ms(o.back[1].down), ms(o.mend))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func (o *blackout) check(t *testing.T) {
	s := &o.all
	if s.stale > 0 {
		t.Errorf("%d reads saw what had been invalidated", s.stale)
	}
	for i := range o.gauges {
		if most := o.gauges[i].most.Load(); most > int64(o.o.MaxLoads) {
			t.Errorf("process %d has made %d loads at once", i, most)
		}
	}
	kinds := []string{redisDown}
	if o.policy == LoadWhenDown {
		kinds = nil
	}
	s.before.only(t, kinds...)
	s.opening.only(t, kinds...)
	s.open.only(t, kinds...)
	s.after.only(t, kinds...)
	if accepting { // how long anybody waits when a command is late TestGatheredWhileRedisHangs and others show by a clock of their own
		o.checkWaits(t)
	}
	o.checkReturn(t)
	if in := len(s.open.waits) - s.answered; o.policy == FailWhenDown && (in == 0 || len(s.open.failed)*100 < in*99) { // memory is not trusted any more
		t.Errorf("of %d reads that ended in the outage only %d failed", in, len(s.open.failed))
	}
	if o.policy == StaleWhenDown && s.open.errorShare() > 0.5 {
		t.Errorf("%.2f of the reads failed", s.open.errorShare())
	}
}

// checkWaits: nobody waits longer than documented, and hardly anybody for Redis once that is known
// to be out of reach.
func (o *blackout) checkWaits(t *testing.T) {
	for _, waits := range [][]time.Duration{o.all.before.waits, o.all.opening.waits, o.all.open.waits, o.all.after.waits} {
		if longest := quantile(waits, 1); longest > o.patience()+time.Second {
			t.Errorf("a read took %v, at most %v are promised", longest, o.patience())
		}
	}
	quick := 20 * time.Millisecond
	if o.policy == LoadWhenDown { // the database is asked: two loads of the key, if he came while one was under way, each after a turn of the others
		quick += 2 * blackoutLoad * (1 + blackoutReaders/20)
	}
	if p := quantile(o.all.open.waits, 0.99); p > quick {
		t.Errorf("while Redis was known to be out of reach, a hundredth of the reads took %v and more; at most %v", p, quick)
	}
}

func (o *blackout) checkReturn(t *testing.T) {
	for i, b := range o.back {
		if b.hit == 0 || accepting && b.hit > o.noticed() {
			t.Errorf("process %d has hit Redis after %v", i, b.hit)
		}
		if accepting && b.down > o.noticed() {
			t.Errorf("process %d did not ask Redis after %v", i, b.down)
		}
	}
	if o.mend == 0 {
		t.Error("hits have not recovered")
	}
}
