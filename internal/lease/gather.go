package lease

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/lent"
)

// maxTrips is how many pipelines of reads are under way at once. With one, a reader waits for a
// whole trip before its own begins, and a slow reply holds up the whole process; with many, the
// pipelines are short. Measured with 128 goroutines: 2 cost as little as 1.
const maxTrips = 2

// gather sends what the goroutines of a process ask for at the same time together: a command goes
// out at once if fewer than maxTrips trips are under way; else it waits for the next one to come
// back, and all that wait then go out in one pipeline. Nobody waits for company. There is one for
// reads, one for requests for leases, which must not be repeated, and one for all else, which may
// be.
//
// It is here, and not go-redis' AutoPipeline, because a caller's deadline and departure must be
// kept, and that a trip's: see docs/decisions/batching.md.
type gather struct {
	store *Store
	wait  time.Duration // bounds a trip

	mu        sync.Mutex
	next      *trip // gathers while maxTrips are under way
	under     int
	slowUntil time.Time // see slow
}

// trip is one pipeline.
type trip struct {
	ctx    context.Context // ends at the time-out of its first command, whose caller's values it has until that leaves
	cancel context.CancelFunc
	cmds   []redis.Cmder
	weight int64 // how many bytes the replies are, about
	done   chan struct{}
	sent   conn.Sent
}

// maxTurn is how long a lone reader waits on its own goroutine, where it cannot notice that it is
// to leave. A healthy Redis answers in less.
const maxTurn = 10 * time.Millisecond

// slow is for how long no reader tries that after one has tried it in vain, which costs a
// connection.
const slow = 5 * time.Second

// few is how many keys are tried so: more may well take longer.
const few = 128

// first reads for a caller who must be able to leave, as do does. If nobody else reads just then,
// and the client keeps deadlines, it does so on the caller's goroutine: a hand-over to another and
// back costs as much as a third of the trip, and more on an idle machine. If it was in vain it
// makes new commands.
func (g *gather) first(ctx context.Context, keys []string, weight int64) ([]redis.Cmder, conn.Sent) {
	cmds := looks(ctx, keys)
	if !g.store.conn.Bounded() || len(keys) > few || !g.begin(1) {
		return cmds, g.do(ctx, weight, cmds...)
	}
	wait := min(maxTurn, g.wait)
	if !g.glance(ctx, wait, cmds) {
		return cmds, conn.Sent{}
	}
	cmds = looks(ctx, keys)
	return cmds, g.do(ctx, weight, cmds...)
}

// glance sends cmds with a short time-out, in the trip that has been begun, and tells whether that
// was in vain; a caller's own end is no fault of Redis.
func (g *gather) glance(ctx context.Context, wait time.Duration, cmds []redis.Cmder) (late bool) {
	defer func() { g.end(late) }()
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	g.store.conn.Process(short, cmds)
	late = ctx.Err() == nil && slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil && !conn.IsReply(cmd.Err()) })
	if !late { // else it is asked again
		g.store.conn.Note(ctx, cmds)
	}
	return late
}

// flight sends commands for a flight, whose goroutine need not leave before the store's time-out.
func (g *gather) flight(ctx context.Context, weight int64, cmds []redis.Cmder) conn.Sent {
	if !g.begin(maxTrips) {
		return g.do(ctx, weight, cmds...)
	}
	defer g.end(false)
	return g.byItself(ctx, cmds)
}

// some sends a command together with others', and many, or a long one, which would keep those
// waiting, alone.
func (g *gather) some(ctx context.Context, cmds []redis.Cmder) conn.Sent {
	if len(cmds) > 1 || isLong(cmds[0]) {
		return g.byItself(ctx, cmds)
	}
	return g.flight(ctx, 0, cmds)
}

// isLong tells whether the arguments of a command are many bytes: a large value, or many in one
// script.
func isLong(cmd redis.Cmder) bool { return size([]redis.Cmder{cmd}) > 16<<10 }

// size is how many bytes of values are in the arguments of commands.
func size(cmds []redis.Cmder) (n int) {
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if b, ok := arg.([]byte); ok {
				n += len(b)
			}
		}
	}
	return n
}

// perWait is how many bytes a command with a large value may send in each time-out more that it is
// given.
const perWait = 4 << 20

// byItself sends commands in a trip of their own.
func (g *gather) byItself(ctx context.Context, cmds []redis.Cmder) conn.Sent {
	wait, send := g.wait, g.store.conn.Ask
	if n := size(cmds); n > FirstLook { // not sent in time it may be too large, which is no trouble of Redis
		wait += time.Duration(float64(wait) * float64(n) / perWait)
		send = g.store.conn.AskLong
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return send(ctx, bound, cmds)
}

// begin begins a trip, if fewer than n are under way and nobody waits for one; on a cluster always,
// where every reader makes its own: the nodes answer apart, and in a trip that they share, one that
// hangs would keep the others' answers. Trips of one are not begun for a while after one was late.
func (g *gather) begin(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == 1 && !g.slowUntil.IsZero() && time.Now().Before(g.slowUntil) {
		return false
	}
	if !g.store.cluster && (g.under >= n || g.next != nil) {
		return false
	}
	g.under++
	return true
}

// end ends it.
func (g *gather) end(late bool) {
	g.mu.Lock()
	if late {
		g.slowUntil = time.Now().Add(slow)
	}
	others := g.next != nil
	if !others {
		g.under--
	}
	g.mu.Unlock()
	if others && !g.store.conn.Apart(g.run) { // they have gathered meanwhile: in its place
		g.refuse()
	}
}

// do sends cmds and waits for their replies, or for ctx, or for the store's time-out. After an
// error cmds may still be in use and must not be read.
//
// A trip has so many commands that their replies come in its time; those that would be too much go
// by themselves.
func (g *gather) do(ctx context.Context, weight int64, cmds ...redis.Cmder) conn.Sent {
	if g.store.cluster {
		return g.store.apart(ctx, g.wait, cmds, g.store.conn.Ask)
	}
	g.mu.Lock()
	t := g.next
	if t != nil && weight > 0 && t.weight+weight > tripBytes {
		g.mu.Unlock()
		return g.store.large(ctx, g.wait, cmds)
	}
	if t == nil {
		t = &trip{done: make(chan struct{})}
		values := lent.Values(ctx)
		defer values.End()
		t.ctx, t.cancel = context.WithTimeout(values, g.wait)
		g.next = t
	}
	t.cmds = append(t.cmds, cmds...)
	t.weight += weight
	start := g.under < maxTrips
	if start {
		g.under++
	}
	g.mu.Unlock()
	if start && !g.store.conn.Apart(g.run) {
		g.refuse()
	}
	select {
	case <-t.done:
		return t.sent
	case <-ctx.Done():
		return conn.NotSent(ctx.Err())
	}
}

// refuse ends the next trip, since the store is closed.
func (g *gather) refuse() {
	g.mu.Lock()
	t := g.next
	g.next = nil
	g.under--
	g.mu.Unlock()
	if t != nil {
		t.sent = conn.NotSent(conn.ErrClosed)
		t.cancel()
		close(t.done)
	}
}

// run makes trips until nobody waits for one.
func (g *gather) run() {
	finished := false
	defer func() {
		if !finished { // a hook of the client called runtime.Goexit
			g.end(false)
		}
	}()
	for {
		g.mu.Lock()
		t := g.next
		g.next = nil
		if t == nil {
			g.under--
		}
		g.mu.Unlock()
		if t == nil {
			finished = true
			return
		}
		t.run(g)
	}
}

func (t *trip) run(g *gather) {
	t.sent = conn.NotSent(conn.NotReturned(nil)) // until it has
	defer close(t.done)
	defer t.cancel()
	t.sent = g.store.conn.Ask(context.Background(), t.ctx, t.cmds)
}

// tripBytes is about how many bytes the replies of one trip have together.
const tripBytes = 1 << 20

var lookFrom, lookTo any = "0", strconv.Itoa(FirstLook - 1)

func looks(ctx context.Context, keys []string) []redis.Cmder {
	cmds := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewStringCmd(ctx, "getrange", key, lookFrom, lookTo)
	}
	return cmds
}

// lanes is how many trips with many bytes are under way at once: those with few share their
// connections and their way to Redis.
const lanes = 4

// large sends commands whose replies are many bytes, when it is their turn. That there is none in
// time says nothing of Redis.
func (s *Store) large(ctx context.Context, wait time.Duration, cmds []redis.Cmder) conn.Sent {
	select {
	case s.lanes <- struct{}{}:
	default:
		select {
		case s.lanes <- struct{}{}:
		case <-ctx.Done():
			return conn.NotSent(ctx.Err())
		}
		if err := s.conn.Down(s.conn.Range(cmds[0].Args()[1].(string))); err != nil { // meanwhile
			<-s.lanes
			return conn.NotSent(err)
		}
	}
	defer func() { <-s.lanes }()
	return s.apart(ctx, wait, cmds, s.conn.AskLong)
}

// apart sends commands by ask, on a goroutine of its own, and returns when they have their replies,
// or when ctx ends.
func (s *Store) apart(ctx context.Context, wait time.Duration, cmds []redis.Cmder, ask askFunc) conn.Sent {
	var sent conn.Sent
	err := s.conn.Await(ctx, func(ctx context.Context) {
		bound, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		sent = ask(ctx, bound, cmds)
	})
	if err != nil {
		return conn.NotSent(err)
	}
	return sent
}

// askFunc is Conn.Ask or Conn.AskLong.
type askFunc func(ctx, bound context.Context, cmds []redis.Cmder) conn.Sent
