package lease

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/lent"
)

// maxTrips is the maximum number of concurrent trips of a batcher. With one, a reader waits for a
// whole trip before its own begins, and a slow reply delays the whole process. With four, it waits
// for about a quarter of a trip, if all are in progress. More would use more connections.
const maxTrips = 4

// A batcher combines the commands that the goroutines of a process send to a server concurrently.
// A command is sent at once if no other is in progress. Otherwise it joins the next trip. That
// trip begins when fewer than maxTrips are in progress, and the goroutines that are ready to run
// have run. So it contains the commands of all goroutines that have waited for a processor, for
// example since the replies of another trip have arrived. If a processor is idle, it begins at
// once. So processors that are idle make many short trips, and busy ones make few long trips.
//
// It replaces the AutoPipeline of go-redis because a caller must be able to leave, and because
// the deadlines of a caller and of a trip must both hold: see docs/decisions/batching.md.
type batcher struct {
	store  *Store
	wait   time.Duration // the timeout of a trip
	alone  bool          // each reader makes its own trip
	isNode bool          // its server is a node of a cluster

	mu            sync.Mutex
	next          *trip // collects commands
	running       int   // trips in progress
	noInlineUntil time.Time
}

// A trip is one pipeline.
type trip struct {
	ctx    context.Context // has the values of the first command's caller until the caller leaves; does not end
	cmds   []redis.Cmder
	weight int64 // the estimated size of the replies in bytes
	done   chan struct{}
	sent   conn.Sent
}

// inlineTimeout is how long a lone reader waits for Redis on its own goroutine, where it cannot
// notice that its context is cancelled. A healthy Redis replies sooner.
const inlineTimeout = 10 * time.Millisecond

// inlinePause is how long reads are not sent inline after one of them has timed out, because each
// such timeout costs a connection.
const inlinePause = 5 * time.Second

// maxInlineKeys is the maximum number of keys of an inline read. More keys may well take longer
// than inlineTimeout.
const maxInlineKeys = 128

// readKeys sends cmds, which read keys, for a caller that must be able to leave. If no other read
// is in progress, and the client respects deadlines, the read runs inline, on the caller's
// goroutine: the switch to another goroutine and back costs up to a third of the trip, and more on
// an idle machine. On a cluster this also applies to few concurrent readers, because they seldom
// have keys of the same node. Otherwise readKeys joins a shared trip. If the inline read timed out,
// it does so with new commands.
func (b *batcher) readKeys(
	ctx context.Context, keys []string, weight int64, cmds []redis.Cmder,
) ([]redis.Cmder, conn.Sent) {
	b.store.readers.Add(1)
	defer b.store.readers.Add(-1)
	if !b.store.conn.Bounded() || len(keys) > maxInlineKeys || !b.beginInline() {
		return cmds, b.join(ctx, weight, cmds...)
	}
	wait := min(inlineTimeout, b.wait)
	if !b.tryInline(ctx, wait, cmds) {
		return cmds, conn.Sent{}
	}
	cmds = readCommands(ctx, keys)
	return cmds, b.join(ctx, weight, cmds...)
}

// tryInline sends cmds with a short timeout, in the trip that the caller has begun. It reports
// whether Redis was late. The end of ctx itself is not a failure of Redis.
func (b *batcher) tryInline(ctx context.Context, wait time.Duration, cmds []redis.Cmder) (late bool) {
	defer func() { b.end(late) }()
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	began := time.Now()
	b.store.conn.Process(short, cmds)
	late = ctx.Err() == nil &&
		slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil && !conn.IsReply(cmd.Err()) })
	if !late { // after a late reply the keys are read again, and that trip is recorded
		b.store.trips.observe(began, cmds)
		b.store.conn.Note(ctx, cmds)
	}
	return late
}

// sendFlight sends the commands of a flight. The goroutine of a flight can wait until the timeout
// of the store, even if its callers have left.
func (b *batcher) sendFlight(ctx context.Context, weight int64, cmds []redis.Cmder) conn.Sent {
	if !b.begin() {
		return b.join(ctx, weight, cmds...)
	}
	defer b.end(false)
	began := time.Now()
	sent := b.sendAlone(ctx, cmds)
	if sent.Err(0) == nil {
		b.store.trips.observe(began, cmds)
	}
	return sent
}

// send sends one short command together with those of other goroutines. Several commands, or a
// long one, would delay the others, and are sent in a separate trip. Several commands with large
// replies wait until there are few trips of that kind.
func (b *batcher) send(ctx context.Context, weight int64, cmds []redis.Cmder) conn.Sent {
	switch {
	case len(cmds) > 1 && weight > shareBytes:
		return b.store.sendLarge(ctx, b.wait, cmds)
	case len(cmds) > 1 || isLong(cmds[0]):
		return b.sendAlone(ctx, cmds)
	}
	return b.sendFlight(ctx, weight, cmds)
}

// isLong reports whether the arguments of a command have many bytes, as those of a large value,
// or of many values in one script.
func isLong(cmd redis.Cmder) bool { return size([]redis.Cmder{cmd}) > 16<<10 }

// size returns the number of bytes of values in the arguments of commands.
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

// bytesPerTimeout is the number of bytes of values that extend the timeout of a trip by its usual
// length. Fewer bytes extend it in proportion.
const bytesPerTimeout = 4 << 20

// sendAlone sends commands in a separate trip.
func (b *batcher) sendAlone(ctx context.Context, cmds []redis.Cmder) conn.Sent {
	wait, send := b.wait, b.store.conn.Ask
	if n := size(cmds); n > FirstRead { // a timeout may be due to the size, and is no failure of Redis
		wait += time.Duration(float64(wait) * float64(n) / bytesPerTimeout)
		send = b.store.conn.AskLong
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return send(ctx, bound, cmds)
}

// begin begins a trip and returns true if no other is in progress. If b.alone is true, others may
// be.
func (b *batcher) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.beginLocked()
}

func (b *batcher) beginLocked() bool {
	if !b.alone && (b.running > 0 || b.next != nil) {
		return false
	}
	b.running++
	return true
}

// beginInline is begin for an inline read. It returns false during inlinePause.
func (b *batcher) beginInline() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.noInlineUntil.IsZero() && time.Now().Before(b.noInlineUntil) {
		return false
	}
	if b.isNode && b.next == nil && b.running < maxTrips && b.store.readers.Load() <= maxTrips {
		b.running++
		return true
	}
	return b.beginLocked()
}

// end ends a trip that begin has begun. late reports that an inline read timed out.
func (b *batcher) end(late bool) {
	b.mu.Lock()
	if late {
		b.noInlineUntil = time.Now().Add(inlinePause)
	}
	others := b.next != nil
	if !others {
		b.running--
	}
	b.mu.Unlock()
	if others {
		b.start(false) // in the place of the trip that has ended
	}
}

// start calls run on a separate goroutine.
func (b *batcher) start(lone bool) {
	if !b.store.conn.Apart(func() { b.run(lone) }) {
		b.failNext()
	}
}

// join adds cmds to the next trip and waits for their replies, for the end of ctx, or for the
// timeout of the trip. If the result has an error, the client may still use cmds, and the caller
// must not read them.
//
// The size of a trip is limited, so that its replies arrive within its timeout. Commands that
// would exceed the limit are sent separately.
func (b *batcher) join(ctx context.Context, weight int64, cmds ...redis.Cmder) conn.Sent {
	if b.alone {
		return b.store.sendAsync(ctx, b.wait, cmds, b.store.conn.Ask)
	}
	b.mu.Lock()
	t := b.next
	if t != nil && weight > 0 && t.weight+weight > tripBytes {
		b.mu.Unlock()
		return b.store.sendLarge(ctx, b.wait, cmds)
	}
	isNew := t == nil
	if isNew {
		t = &trip{done: make(chan struct{})}
		values := lent.Values(ctx)
		defer values.End()
		t.ctx = values
		b.next = t
	}
	t.cmds = append(t.cmds, cmds...)
	t.weight += weight
	start, lone := isNew && b.running < maxTrips, b.running == 0
	if start {
		b.running++
	}
	b.mu.Unlock()
	if start {
		b.start(lone)
	}
	select {
	case <-t.done:
		return t.sent
	case <-ctx.Done():
		return conn.NotSent(ctx.Err())
	}
}

// failNext fails the next trip, because the Conn is closed.
func (b *batcher) failNext() {
	b.mu.Lock()
	t := b.next
	b.next = nil
	b.running--
	b.mu.Unlock()
	if t != nil {
		t.sent = conn.NotSent(conn.ErrClosed)
		close(t.done)
	}
}

// run makes trips until no command waits for one. Before each trip, it lets the goroutines run
// that are ready to, because they may have commands for it. If lone is true, no other trip is in
// progress, and the first one begins without delay.
func (b *batcher) run(lone bool) {
	finished := false
	defer func() {
		if !finished { // a hook of the client called runtime.Goexit
			b.end(false)
		}
	}()
	for {
		if !lone {
			runtime.Gosched()
		}
		lone = false
		t := b.take()
		if t == nil {
			finished = true
			return
		}
		t.run(b)
	}
}

// take returns the next trip, or ends the caller's and returns nil if no command waits.
func (b *batcher) take() *trip {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.next
	b.next = nil
	if t == nil {
		b.running--
	}
	return t
}

// run sends the commands. Its timeout begins now, not when the first reader has joined: a wait for
// a processor, or for other trips, is not the time of Redis.
func (t *trip) run(b *batcher) {
	t.sent = conn.NotSent(conn.NotReturned(nil)) // replaced when Ask returns
	defer close(t.done)
	if err := b.store.down(t.cmds); err != nil {
		t.sent = conn.NotSent(err)
		return
	}
	bound, cancel := context.WithTimeout(t.ctx, b.wait)
	defer cancel()
	began := time.Now()
	t.sent = b.store.conn.Ask(context.Background(), bound, t.cmds)
	if t.sent.Err(0) == nil {
		b.store.trips.observe(began, t.cmds)
	}
}

// down returns an error if Redis is down for all keys of commands, for example since they have
// begun to wait for other trips.
func (s *Store) down(cmds []redis.Cmder) (err error) {
	for _, cmd := range cmds {
		if err = s.conn.DownFor(cmd); err == nil {
			return nil
		}
	}
	return err
}

// tripBytes is the approximate maximum size of the replies of one trip, in bytes.
const tripBytes = 1 << 20

var readFrom, readTo any = "0", strconv.Itoa(FirstRead - 1)

func readCommands(ctx context.Context, keys []string) []redis.Cmder {
	cmds := make([]redis.Cmder, len(keys))
	args := make([]any, 0, 4*len(keys)) // of all commands
	for i, key := range keys {
		args = append(args, "getrange", key, readFrom, readTo)
		cmds[i] = redis.NewStringCmd(ctx, args[4*i:len(args):len(args)]...)
	}
	return cmds
}

// maxLargeTrips is the maximum number of concurrent trips with many bytes. It is small, because
// trips with few bytes use the same connections and the same network.
const maxLargeTrips = 4

// sendLarge sends commands whose replies are large. It waits until fewer than maxLargeTrips are
// in progress. A timeout of such a trip is not counted as a failure of Redis.
func (s *Store) sendLarge(ctx context.Context, wait time.Duration, cmds []redis.Cmder) conn.Sent {
	select {
	case s.largeTrips <- struct{}{}:
	default:
		select {
		case s.largeTrips <- struct{}{}:
		case <-ctx.Done():
			return conn.NotSent(ctx.Err())
		}
		if err := s.down(cmds); err != nil { // since the wait began
			<-s.largeTrips
			return conn.NotSent(err)
		}
	}
	defer func() { <-s.largeTrips }()
	return s.sendAsync(ctx, wait, cmds, s.conn.AskLong)
}

// sendAsync sends commands with send on a separate goroutine. It returns when they have their
// replies, or when ctx ends.
func (s *Store) sendAsync(ctx context.Context, wait time.Duration, cmds []redis.Cmder, send sendFunc) conn.Sent {
	var sent conn.Sent
	err := s.conn.Await(ctx, func(ctx context.Context) {
		bound, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		began := time.Now()
		sent = send(ctx, bound, cmds)
		if sent.Err(0) == nil {
			s.trips.observe(began, cmds)
		}
	})
	if err != nil {
		return conn.NotSent(err)
	}
	return sent
}

// A sendFunc is Conn.Ask or Conn.AskLong.
type sendFunc func(ctx, bound context.Context, cmds []redis.Cmder) conn.Sent
