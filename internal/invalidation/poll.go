package invalidation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// pollsInBound is how often a range is polled within the bound: some may be late or lost without
// the memory being distrusted.
const pollsInBound = 4

// poller asks Redis for the last number and the generations of one range, at a fixed pace, and at
// once when somebody waits for them. Each range has its own, so that a server that hangs keeps only
// its own ranges in doubt.
type poller struct {
	c    *Bus
	rng  int
	kick chan struct{}

	confirmed atomic.Int64  // until when the generations may be used, on the bus's clock
	doubts    atomic.Uint64 // how often that has ended before

	mu    sync.Mutex
	begun uint64        // polls
	ended uint64        // of them
	err   error         // of the last that ended
	next  chan struct{} // closed when the one under way, or the next, ends
}

func newPoller(c *Bus, rng int) *poller {
	return &poller{c: c, rng: rng, kick: make(chan struct{}, 1), next: make(chan struct{})}
}

// ConfirmedAt reports whether the generations of a range are known as they were in Redis less than
// the bound ago. now is the time on the bus's clock, which is monotonic and is read now: a process
// that was suspended knows that it does not know.
func (b *Bus) ConfirmedAt(rng uint8) (now time.Duration, confirmed bool) {
	now = b.Now()
	return now, int64(now) < b.pollers[rng].confirmed.Load()
}

// Now is the time on the bus's clock, which is monotonic.
func (b *Bus) Now() time.Duration { return time.Since(b.start) }

// Key is where the number and the generations of a range are kept.
func (b *Bus) Key(rng uint8) string { return b.keys[rng] }

// Confirm asks for the generations of a range, and waits for an answer to what is asked from now
// on. It ends with ctx, and after the time-out of a command: by itself a poll may take longer, for
// before a cluster's client sends its first command it asks for the table of all commands, for up
// to 5 seconds, whatever the context (go-redis v9.23.0).
func (b *Bus) Confirm(ctx context.Context, rng uint8) error {
	b.Poll()
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	p := b.pollers[rng]
	p.mu.Lock()
	want := p.begun + 1 // one that is under way may have been sent longer ago than the bound
	for p.ended < want {
		next := p.next
		p.mu.Unlock()
		select {
		case p.kick <- struct{}{}:
		default:
		}
		select {
		case <-next:
		case <-ctx.Done():
			return b.conn.Explain(caller, ctx.Err(), "a poll", b.keys[rng], began)
		case <-b.ctx.Done():
			return conn.ErrClosed
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	return p.err
}

// doubt has the generations not be used before a poll that is sent from now on is answered.
func (p *poller) doubt() {
	p.doubts.Add(1) // first: see once
	p.confirmed.Store(0)
}

func (p *poller) run() {
	period := p.c.bound / pollsInBound
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.c.ctx.Done():
			return
		case <-p.kick:
		case <-timer.C:
		}
		p.once()
		timer.Reset(period*3/4 + rand.N(period/4+1)) // processes do not ask in step
	}
}

// once asks, and spreads what is answered.
func (p *poller) once() {
	p.mu.Lock()
	p.begun++
	p.mu.Unlock()
	t := p.c.tracks[p.rng]
	names := p.c.loaders.names()
	doubts := p.doubts.Load()
	q := t.ask(time.Now())
	a, err := p.c.poll(p.rng, names)
	if err != nil {
		err = p.c.conn.Explain(p.c.ctx, err, "a poll", p.c.keys[p.rng], q.at)
		p.c.counts.failed(err)
		p.c.conn.Failed(p.c.ctx, p.c.keys[p.rng], err)
	} else {
		p.c.counts.clock(p.rng, q.at, time.Now(), a.now)
		for i, name := range names {
			p.c.loaders.answered(name, p.rng, a.generations[i], q.at)
		}
		p.confirmed.Store(int64(q.at.Add(p.c.bound).Sub(p.c.start)))
		if p.doubts.Load() != doubts { // since it was sent
			p.confirmed.Store(0)
		}
		if t.answered(q, a.last) {
			p.c.hearing.Load().endIf(q.session)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.err = p.begun, err
	close(p.next)
	p.next = make(chan struct{})
}

// answer is what Redis says to a poll.
type answer struct {
	now, last   uint64
	generations []uint64 // of the loaders that were asked for
}

func (b *Bus) poll(rng int, names []string) (answer, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.conn.Timeout())
	defer cancel()
	args := make([]any, 0, len(names))
	for _, name := range names {
		args = append(args, name)
	}
	cmd, err := b.await(ctx, pollScript, b.keys[rng], args...)
	if err != nil {
		return answer{}, err
	}
	reply, err := cmd.StringSlice()
	if err != nil {
		return answer{}, err
	}
	if len(reply) != len(names)+2 {
		return answer{}, fmt.Errorf("a poll was answered with %d parts instead of %d", len(reply), len(names)+2)
	}
	numbers := make([]uint64, len(reply))
	for i, digits := range reply {
		if numbers[i], err = number(digits); err != nil {
			return answer{}, errors.New("the answer to a poll is not a number")
		}
	}
	return answer{now: numbers[0], last: numbers[1], generations: numbers[2:]}, nil
}

// await is eval on a goroutine of its own: never on the poller's, which a hook might end.
func (b *Bus) await(ctx context.Context, s conn.Script, key string, args ...any) (cmd *redis.Cmd, err error) {
	var done *redis.Cmd
	if err := b.conn.Await(ctx, func(ctx context.Context) { done = b.eval(ctx, s, key, args...) }); err != nil {
		return nil, err // and what it writes to may still be in use
	}
	if done == nil {
		return nil, conn.NotReturned(nil)
	}
	return done, done.Err()
}

// eval runs a script on key, in full if its server does not know it.
func (b *Bus) eval(ctx context.Context, s conn.Script, key string, args ...any) *redis.Cmd {
	cmd := script(ctx, "evalsha", s.Hash, key, args)
	b.conn.Process(ctx, []redis.Cmder{cmd})
	if conn.Unknown(cmd) {
		cmd = script(ctx, "eval", s.Source, key, args)
		b.conn.Process(ctx, []redis.Cmder{cmd})
	}
	return cmd
}

func script(ctx context.Context, name, body, key string, args []any) *redis.Cmd {
	return redis.NewCmd(ctx, append([]any{name, body, 1, key}, args...)...)
}

// loaders are those of this process, with what is known of their generations.
type loaders struct {
	mu     sync.Mutex
	sorted []string
	known  map[string]*known
}

// known is what is known of one loader: in each range the generation, and when it was learned.
type known struct {
	raised      func(rng int, generation uint64)
	generations [conn.Ranges]uint64
	at          [conn.Ranges]time.Time
}

// Register makes the generations of a loader known to it: raised is called with the first and with
// each change, quickly, and never by two at once.
func (b *Bus) Register(name string, raised func(rng int, generation uint64)) {
	b.loaders.mu.Lock()
	defer b.loaders.mu.Unlock()
	if b.loaders.known == nil {
		b.loaders.known = make(map[string]*known)
	}
	b.loaders.known[name] = &known{raised: raised}
	b.loaders.sorted = append(slices.Clone(b.loaders.sorted), name)
}

// names are not to be changed.
func (l *loaders) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted
}

// answered learns a generation from a poll. One that was sent before the present generation was
// learned may tell of the one before; a later one tells what is so, also if it is less: where Redis
// has lost its data, and its clock with it. In the same instant, which a coarse clock makes of some
// time, it is not taken for later.
func (l *loaders) answered(name string, rng int, generation uint64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.known[name]; k != nil && (generation > k.generations[rng] || sent.After(k.at[rng])) {
		k.set(rng, generation, sent)
	}
}

// heard learns one from a message; not the first, for a message may be late, and nothing is
// confirmed before a poll. It tells whether the message says less than is known: it is late, or
// Redis has lost its data since, and only a poll knows.
func (l *loaders) heard(name string, rng int, generation uint64) (doubtful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k != nil && k.generations[rng] != 0 && generation > k.generations[rng] {
		k.set(rng, generation, time.Now())
	}
	return k != nil && generation < k.generations[rng]
}

// announced learns what Redis has just answered to an announcement of our own: it is so, whatever
// was known before, also where nothing was, and an answer to a poll that was sent before comes too
// late. It tells whether more was known: that was wrong, or another process has announced
// meanwhile, and only a poll knows.
func (l *loaders) announced(name string, rng int, generation uint64) (doubtful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k == nil {
		return false
	}
	doubtful = generation < k.generations[rng]
	k.set(rng, generation, time.Now())
	return doubtful
}

func (k *known) set(rng int, generation uint64, at time.Time) {
	changed := k.generations[rng] != generation
	k.generations[rng], k.at[rng] = generation, at
	if changed {
		k.raised(rng, generation)
	}
}
