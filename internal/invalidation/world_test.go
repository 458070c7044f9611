package invalidation

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// world is one process's track and memory, and all that they depend on: a Redis, other processes
// that write, messages and polls on their way. Its time is made up, in microseconds. What happens
// when depends on the seed alone.
type world struct {
	r      *rand.Rand
	faults faults
	now    int64
	end    int64 // of faults and writes
	queue  events
	seq    int
	log    func(format string, args ...any) // nil: not

	// Redis
	last    uint64
	clock   int64 // how far its clock is ahead of ours
	visible [worldKeys]int
	written []written
	flushed int // how many of them were before the last FLUSHALL
	version int
	given   map[uint64]bool // numbers

	// the process
	t        *track
	link     *wire // the connection of its subscription
	sessions uint64
	memory   [worldKeys]remembered
	stripes  [worldKeys]uint64
	epoch    uint64
	trust    int64
	polling  bool
	kicked   bool
	polls    int     // begun; a poll that was planned before another began is not made
	executed []int64 // when polls were executed by Redis

	acked      [worldKeys][]written
	hits       int
	violations []string
	dead       int
}

const (
	worldKeys   = 3
	worldBound  = 1_000_000
	worldPeriod = worldBound / pollsInBound
	worldTries  = worldBound / 2 // a poll's time-out
)

// faults are how often things go wrong, in a hundred.
type faults struct {
	drop, deaf, reorder, slow int // of messages: lost, all from now on lost, overtaken, late
	flush, rollback           int // of writes: Redis loses all before it, or the last ones
	leave                     int // of polls: the subscription is lost during one
	silent                    int // of lost subscriptions: noticed only by the next one
	pollLost, pollSlow        int
}

func someFaults(r *rand.Rand) faults {
	some := func(most int) int { return max(r.IntN(2*most)-most, 0) }
	return faults{
		drop: some(30), deaf: some(10), reorder: some(20), slow: some(20), flush: some(15), rollback: some(15),
		leave: some(20), silent: r.IntN(101), pollLost: some(30), pollSlow: some(30),
	}
}

// written is an invalidation.
type written struct {
	time    int64
	prev    uint64
	num     uint64
	key     int
	version int
}

type remembered struct {
	held       bool
	version    int
	generation uint64
}

// wire is a connection that delivers messages in order.
type wire struct {
	session uint64 // 0: Redis' confirmation is on its way
	deaf    bool
	free    int64 // when the last message arrives
}

func newWorld(seed uint64, f func(r *rand.Rand) faults, end time.Duration) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), given: map[uint64]bool{}, end: end.Microseconds()}
	w.faults = f(w.r)
	w.t = &track{bound: worldBound * time.Microsecond, memory: w}
	if w.r.IntN(2) == 0 {
		w.last = uint64(w.instant(-worldBound).UnixMicro()) // something was announced before
	}
	w.after(0, w.poll)
	w.after(w.upTo(worldPeriod), w.subscribe)
	w.after(w.upTo(worldPeriod), w.write)
	for range 2 {
		w.after(w.upTo(worldPeriod), w.read)
	}
	return w
}

// run continues for three bounds after the last fault.
func (w *world) run() {
	for len(w.violations) == 0 {
		e := heap.Pop(&w.queue).(event)
		if e.time > w.end+3*worldBound {
			return
		}
		if e.time > w.now {
			w.now = e.time - 1
			w.check()
			w.now = e.time
		}
		e.do()
	}
}

func (w *world) instant(now int64) time.Time { return time.UnixMicro(1e15 + now) }

func (w *world) after(d int64, do func()) {
	w.seq++
	heap.Push(&w.queue, event{w.now + d, w.seq, do})
}

func (w *world) upTo(d int64) int64 { return w.r.Int64N(d) }

func (w *world) fault(percent int) bool {
	return percent > 0 && w.now < w.end && w.r.IntN(100) < percent
}

func (w *world) say(format string, args ...any) {
	if w.log != nil {
		w.log("%9d "+format, append([]any{w.now}, args...)...)
	}
}

// delay is of one way.
func (w *world) delay(slow int) int64 {
	if w.fault(slow) {
		return w.upTo(2 * worldBound)
	}
	return 100 + w.upTo(worldPeriod/4)
}

// check looks at all that the process would serve now.
func (w *world) check() {
	if w.now >= w.trust {
		return
	}
	for key, m := range w.memory {
		if !m.held || m.generation != w.generation(key) {
			continue
		}
		w.hits++
		for _, a := range w.acked[key] {
			if a.time <= w.now-worldBound && a.version > m.version {
				w.violate("key %d is served as of version %d, but %d was acknowledged at %d", key, m.version,
					a.version, a.time)
				return
			}
		}
	}
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf("at %d: ", w.now)+fmt.Sprintf(format, args...))
	w.say("VIOLATION "+format, args...)
}

func (w *world) generation(key int) uint64 { return w.stripes[key] + w.epoch }

// Forget, Clear and Trust are the track's calls of the memory.
func (w *world) Forget(stable uint64) { w.stripes[stable]++ }

func (w *world) Clear(int) {
	w.say("clear")
	w.epoch++
}

func (w *world) Void(rng int) { w.Clear(rng) }

func (w *world) Trust(_ int, until time.Time) {
	if until.IsZero() {
		w.trust = 0
		return
	}
	w.trust = until.Sub(w.instant(0)).Microseconds()
	if !slices.Contains(w.executed, w.trust-worldBound) {
		w.violate("trusted until %d, which is not the bound after a poll", w.trust)
	}
}

// read takes the generation, reads from Redis, and keeps what it has read.
func (w *world) read() {
	key := w.r.IntN(worldKeys)
	generation := w.generation(key)
	w.after(w.delay(w.faults.slow), func() {
		version := w.visible[key]
		w.after(w.delay(w.faults.slow), func() { w.memory[key] = remembered{true, version, generation} })
	})
	w.after(w.upTo(worldPeriod), w.read)
}

// write invalidates a key: in one step it is deleted in Redis, and announced.
func (w *world) write() {
	if w.now >= w.end {
		return
	}
	if w.fault(w.faults.flush) {
		w.say("FLUSHALL")
		w.last, w.flushed = 0, len(w.written)
		if w.r.IntN(2) == 0 {
			w.after(w.upTo(worldPeriod), w.write)
			return
		}
	}
	if w.fault(w.faults.rollback) {
		w.rollback()
	}
	key := w.r.IntN(worldKeys)
	w.version++
	prev := w.last
	w.last = w.number(prev)
	x := written{w.now, prev, w.last, key, w.version}
	w.visible[key] = x.version
	w.written = append(w.written, x)
	local := w.r.IntN(4) == 0
	w.say("write %+v, own: %v", x, local)
	if local { // its own memory forgets at the reply of Redis, and not by the message
		w.after(w.delay(0), func() {
			w.stripes[key]++
			if slices.Contains(w.written, x) { // or it has been rolled back
				acknowledged := x
				acknowledged.time = w.now
				w.acked[key] = append(w.acked[key], acknowledged)
			}
		})
	} else {
		w.acked[key] = append(w.acked[key], x)
	}
	w.publish(position{prev, x.num}, key, local)
	w.after(w.upTo(worldPeriod), w.write)
}

// number comes after prev. None comes again: after a failover that can only be where the clock of
// the new server is behind, and was so before.
func (w *world) number(prev uint64) uint64 {
	n := max(prev, uint64(w.instant(w.now+w.clock-1).UnixMicro())) + 1
	for w.given[n] {
		n++
	}
	w.given[n] = true
	return n
}

// rollback is a failover to a replica that lacks the last writes, and has another clock. Writes
// that were acknowledged but not replicated are lost, as always in Redis.
func (w *world) rollback() {
	keep := max(len(w.written)-w.r.IntN(4), w.flushed)
	if keep == len(w.written) {
		return
	}
	first := w.written[keep]
	w.say("rollback before %+v", first)
	w.last, w.visible = first.prev, [worldKeys]int{}
	w.written = w.written[:keep]
	for _, x := range w.written {
		w.visible[x.key] = x.version
	}
	for key := range w.acked {
		w.acked[key] = slices.DeleteFunc(w.acked[key], func(x written) bool { return x.version >= first.version })
	}
	w.clock = w.upTo(4*worldBound) - 2*worldBound
	if w.r.IntN(2) == 0 {
		w.lose()
	}
}

// publish sends a message by the connection that there is.
func (w *world) publish(l position, key int, local bool) {
	c := w.link
	if c == nil {
		return
	}
	if c.deaf = c.deaf || w.fault(w.faults.deaf); c.deaf || w.fault(w.faults.drop) {
		w.say("lost: %+v", l)
		return
	}
	arrive := w.now + w.delay(w.faults.slow)
	if !w.fault(w.faults.reorder) {
		arrive = max(arrive, c.free)
		c.free = arrive
	}
	w.after(arrive-w.now, func() {
		if w.link != c || c.session == 0 {
			return
		}
		if !local {
			w.Forget(uint64(key))
		}
		w.t.received(c.session, l)
		w.say("heard %+v; the track has %d", l, w.t.lastReceived)
	})
}

// subscribe makes a connection. It does not receive messages that were published before.
func (w *world) subscribe() {
	if w.link != nil {
		return
	}
	c := &wire{}
	w.link = c
	d := w.delay(w.faults.slow)
	c.free = w.now + d
	w.after(d, func() {
		if w.link != c {
			return
		}
		w.sessions++
		c.session = w.sessions
		w.say("subscribed: session %d", c.session)
		w.t.subscribed(c.session)
		w.kick()
	})
}

// lose ends the connection; the process may notice that only by the next one's confirmation.
func (w *world) lose() {
	w.say("the connection is lost")
	w.link = nil
	if !w.fault(w.faults.silent) {
		w.t.unsubscribed()
	}
	w.after(w.upTo(worldPeriod), w.subscribe)
}

func (w *world) kick() {
	if w.kicked = true; !w.polling {
		w.poll()
	}
}

func (w *world) poll() {
	if w.polling {
		return
	}
	w.polling, w.kicked = true, false
	w.polls++
	q := w.t.beginPoll(w.instant(w.now))
	sent := w.now
	w.say("poll, heard %d, session %d", q.lastReceived, q.session)
	there, back := w.delay(w.faults.pollSlow), w.delay(w.faults.pollSlow)
	if there+back > worldTries || w.fault(w.faults.pollLost) {
		w.after(worldTries, w.next)
		return
	}
	w.after(there, func() {
		if w.last == 0 { // the poll makes one, as the script does
			w.last = w.number(0)
		}
		last := w.last
		w.executed = append(w.executed, sent)
		if w.fault(w.faults.leave) {
			w.lose()
		}
		w.after(back, func() {
			dead := w.t.endPoll(q, last)
			w.say("answered: %d, dead: %v; the track has %d, missing %d, trusted until %d", last, dead,
				w.t.lastReceived, w.t.missing, w.trust)
			if dead {
				w.dead++
				w.lose()
			}
			w.next()
		})
	})
}

func (w *world) next() {
	w.polling = false
	if w.kicked {
		w.poll()
		return
	}
	polls := w.polls
	w.after(worldPeriod*3/4+w.upTo(worldPeriod/4), func() {
		if w.polls == polls {
			w.poll()
		}
	})
}
