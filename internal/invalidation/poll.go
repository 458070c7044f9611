package invalidation

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
)

// pollsInBound is the number of polls per bound. Some may be late or lost before trust in memory
// ends.
const pollsInBound = 4

// minLostAfter is the minimum of track.lostAfter. It is longer than announcements are gathered.
const minLostAfter = 50 * time.Millisecond

// poller polls the last number and the generations of one range, at a fixed interval, and
// immediately when a caller waits for them. Each range has its own poller, so that a server that
// hangs affects only its ranges. Ranges of the same server share their polls.
type poller struct {
	bus  *Bus
	rng  int
	kick chan struct{}

	confirmed  atomic.Int64  // until when the generations may be used, on the bus's clock
	unconfirms atomic.Uint64 // number of calls of unconfirm
	timeouts   atomic.Int32  // number of polls in a row that have timed out

	polling   sync.Mutex    // held during a poll; guards the fields up to mu
	due       time.Time     // when to poll next
	completed time.Time     // when the last complete poll was sent that has succeeded
	renewed   time.Duration // when the sets of groups were renewed, on the bus's clock

	mu    sync.Mutex
	begun uint64        // number of polls begun
	ended uint64        // number of polls ended
	err   error         // of the last poll
	next  chan struct{} // closed when the current or next poll ends
}

func newPoller(b *Bus, rng int) *poller {
	return &poller{bus: b, rng: rng, kick: make(chan struct{}, 1), next: make(chan struct{})}
}

// ConfirmedAt reports whether the generations of a range were confirmed within the last bound. now
// is the current time on the bus's monotonic clock, so a process that was suspended finds them
// unconfirmed.
func (b *Bus) ConfirmedAt(rng uint8) (now time.Duration, confirmed bool) {
	now = b.Now()
	return now, int64(now) < b.pollers[rng].confirmed.Load()
}

// Now returns the time on the bus's clock, which is monotonic.
func (b *Bus) Now() time.Duration { return time.Since(b.start) }

// Key returns the name of the hash with the number and the generations of a range.
func (b *Bus) Key(rng uint8) string { return b.keys[rng] }

// Confirm polls the generations of a range, and waits for the reply to a poll that is sent after
// the call. It ends with ctx, and after a command's time-out. A poll alone could take longer:
// before its first command, a cluster client requests the table of all commands for up to 5
// seconds, regardless of the context (go-redis v9.23.0).
func (b *Bus) Confirm(ctx context.Context, rng uint8) error {
	b.Poll()
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	p := b.pollers[rng]
	p.mu.Lock()
	want := p.begun + 1 // a poll in progress may have been sent longer ago than the bound
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

// unconfirm prevents the use of the generations until a poll that is sent from now on has been
// replied to.
func (p *poller) unconfirm() {
	p.unconfirms.Add(1) // first: see poll
	p.confirmed.Store(0)
}

func (p *poller) run() {
	period := p.bus.bound / pollsInBound
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		kicked := false
		select {
		case <-p.bus.ctx.Done():
			return
		case <-p.kick:
			kicked = true
		case <-timer.C:
		}
		p.polling.Lock()
		now, interval := time.Now(), period*3/4+rand.N(period/4+1) // processes do not poll in step
		if rest := p.due.Sub(now); rest > 0 && !kicked {           // another poller has polled this range
			p.polling.Unlock()
			timer.Reset(rest)
			continue
		}
		all := p.together()
		for _, other := range all {
			other.due = now.Add(period)
		}
		p.due = now.Add(interval)
		p.bus.pollRanges(all)
		timer.Reset(interval)
	}
}

// poll polls one range.
func (p *poller) poll() {
	p.polling.Lock()
	p.bus.pollRanges([]*poller{p})
}

// together returns the pollers of the ranges that share a poll with p, including p, and holds their
// polling. These are the ranges of the same server that are not being polled. If the last poll of a
// range has failed, it is polled alone: another server may have it now.
func (p *poller) together() []*poller {
	all := []*poller{p}
	b := p.bus
	if b.conn.InUse() == 1 || !p.works() {
		return all
	}
	node := b.conn.Node(b.ctx, b.keys[p.rng])
	for _, other := range b.pollers {
		same := other != p && node != nil && b.conn.Node(b.ctx, b.keys[other.rng]) == node
		if same && other.works() && other.polling.TryLock() {
			all = append(all, other)
		}
	}
	return all
}

// works reports whether the last poll has succeeded.
func (p *poller) works() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended > 0 && p.err == nil
}

// A rangePoll is a poll of one range in progress.
type rangePoll struct {
	*poller
	pending    pendingPoll
	unconfirms uint64 // before it was sent
	requests   []*pollRequest
}

// pollRanges sends one poll for all ranges of the pollers, and applies the replies. The caller
// holds their polling, which pollRanges releases.
func (b *Bus) pollRanges(pollers []*poller) {
	var polls []rangePoll
	var requests []*pollRequest
	for _, p := range pollers {
		p.mu.Lock()
		p.begun++
		p.mu.Unlock()
		poll := rangePoll{poller: p, unconfirms: p.unconfirms.Load(), pending: b.tracks[p.rng].beginPoll(time.Now())}
		renew := b.Now()-p.renewed >= groupsRenewal
		poll.requests = b.pollRequests(p.rng, renew, renew || poll.pending.sent.Sub(p.completed) >= b.bound)
		polls, requests = append(polls, poll), append(requests, poll.requests...)
	}
	b.sendPolls(requests)
	for _, poll := range polls {
		poll.end()
	}
}

// end applies the replies, or the error of one of them.
func (p *rangePoll) end() {
	defer p.polling.Unlock()
	var err error
	for _, r := range p.requests {
		err = cmp.Or(err, r.err)
	}
	if err != nil {
		err = p.bus.conn.Explain(p.bus.ctx, err, "a poll", p.bus.keys[p.rng], p.pending.sent)
		p.bus.counts.pollFailed(err)
		p.bus.conn.Failed(p.bus.ctx, p.bus.keys[p.rng], err)
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			p.timeouts.Add(1)
		}
		if conn.IsReply(err) {
			p.bus.report("Redis has refused a poll: memory is not trusted", err)
		}
	} else {
		p.apply()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended, p.err = p.begun, err
	close(p.next)
	p.next = make(chan struct{})
}

// apply applies the replies.
func (p *rangePoll) apply() {
	p.timeouts.Store(0)
	first := p.requests[0]
	if first.renew {
		p.renewed = p.bus.Now()
	}
	if first.full {
		p.completed = p.pending.sent
		p.bus.setClock(p.rng, p.pending.sent, time.Now(), first.reply.now)
	}
	for _, r := range p.requests {
		for i, name := range r.names {
			p.bus.loaders.polled(name, p.rng, r.reply.generations[i], p.pending.sent)
		}
	}
	p.confirmed.Store(int64(p.pending.sent.Add(p.bus.bound).Sub(p.bus.start)))
	if p.poller.unconfirms.Load() != p.unconfirms { // since the poll was sent
		p.confirmed.Store(0)
	}
	if p.bus.tracks[p.rng].endPoll(p.pending, first.reply.last) {
		p.bus.subscription.Load().endIf(p.pending.session)
	}
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// await runs eval on its own goroutine, because a hook may end the goroutine.
func (b *Bus) await(ctx context.Context, s conn.Script, key string, args ...any) (cmd *redis.Cmd, err error) {
	var done *redis.Cmd
	if err := b.conn.Await(ctx, func(ctx context.Context) { done = b.eval(ctx, s, key, args...) }); err != nil {
		return nil, err // done may still be in use
	}
	if done == nil {
		return nil, conn.NotReturned(nil)
	}
	return done, done.Err()
}

// eval runs a script on key. It sends the source if the server does not know the script.
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

// loaders holds the loaders of this process and their generations.
type loaders struct {
	mu     sync.Mutex
	sorted []string
	known  map[string]*known
}

// known holds, for one loader and each range, the generation and the time when it was learned.
type known struct {
	onChange    func(rng int, generation uint64)
	groups      *groups.Loader
	reads       [conn.Ranges]groupReads
	generations [conn.Ranges]uint64
	times       [conn.Ranges]time.Time
}

// Register adds a loader and the log of its groups, which may be nil. onChange is called with the
// first generation of each range and with each change. It must be quick, and is never called
// concurrently.
func (b *Bus) Register(name string, log *groups.Loader, onChange func(rng int, generation uint64)) {
	b.loaders.mu.Lock()
	defer b.loaders.mu.Unlock()
	if b.loaders.known == nil {
		b.loaders.known = make(map[string]*known)
	}
	b.loaders.known[name] = &known{onChange: onChange, groups: log}
	b.loaders.sorted = append(slices.Clone(b.loaders.sorted), name)
}

// all returns the names of the loaders and the logs of their groups. The caller must not modify
// the names.
func (l *loaders) all() (names []string, logs []*groups.Loader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.sorted {
		logs = append(logs, l.known[name].groups)
	}
	return l.sorted, logs
}

// groups returns the log of a loader's groups, or nil if this process does not have the loader.
func (l *loaders) groups(name string) *groups.Loader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.known[name]; k != nil {
		return k.groups
	}
	return nil
}

// reads returns the log of a loader's groups, and the reads of one range. This process must have
// the loader.
func (l *loaders) reads(name string, rng int) (*groups.Loader, *groupReads) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	return k.groups, &k.reads[rng]
}

// polled applies a generation from a poll. A poll that was sent before the current generation was
// learned may report an older one. A later poll is authoritative, even if its generation is
// lower: Redis may have lost its data and its clock. If both times are equal, as they can be with
// a coarse clock, the poll does not count as later.
func (l *loaders) polled(name string, rng int, generation uint64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.known[name]; k != nil && (generation > k.generations[rng] || sent.After(k.times[rng])) {
		k.set(rng, generation, sent)
	}
}

// received applies a generation from a message. It does not set the first generation, because the
// message may be late; only a poll confirms one. It reports whether the message has a lower
// generation than the known one. Then the message is late, or Redis has lost its data, and only a
// poll can decide.
func (l *loaders) received(name string, rng int, generation uint64) (lower bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k != nil && k.generations[rng] != 0 && generation > k.generations[rng] {
		k.set(rng, generation, time.Now())
	}
	return k != nil && generation < k.generations[rng]
}

// announced applies the generation from the reply to an announcement of this process. It overrides
// the known generation, also if none was known. The reply to a poll that was sent before has no
// effect afterwards. announced reports whether the known generation was higher. Then the known one
// was wrong, or another process has announced a generation in between, and only a poll can decide.
func (l *loaders) announced(name string, rng int, generation uint64) (lower bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[name]
	if k == nil {
		return false
	}
	lower = generation < k.generations[rng]
	k.set(rng, generation, time.Now())
	return lower
}

func (k *known) set(rng int, generation uint64, sent time.Time) {
	changed := k.generations[rng] != generation
	k.generations[rng], k.times[rng] = generation, sent
	if changed {
		k.onChange(rng, generation)
	}
}
