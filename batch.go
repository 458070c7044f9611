package cacheaside

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
)

// round is one round of one key: its callers are fixed before the first look at Redis.
type round[K comparable, V any] = flight.Round[K, state[V]]

// state is what a round is at, and in the end what it gives its callers.
type state[V any] struct {
	value       V
	null        bool
	remembered  bool // it was put into the memory tier
	unvalidated bool // Redis has not confirmed it

	step       step
	text       string // the key's
	name       string // in Redis
	hashed     bool   // the name holds only a hash of the text
	stable     uint64
	place      uint8          // the range of keys that it is in
	era        *local.Era     // of the loader, there, as it was before the first look at Redis
	read       time.Duration  // when that was taken, or before, on the channel's clock
	generation uint64         // of the key in the memory tier, likewise
	behind     bool           // an entry has shown that the era is over
	attempt    *lease.Attempt // nil: Redis has not been asked, or is not to be
	beginning  []byte         // of a long entry
	bypass     bool
	hit        bool        // it was found, not loaded
	alone      bool        // loads without a lease
	held       bool        // since the key is on hold
	unsifted   bool        // the filter is not to be asked
	waiting    func(error) // for another's load; called when that is over. nil: it does not wait
	verdict    verdict
	fresh      bool // not from memory
	lost       bool // Redis was lost while the value was being stored
	spared     bool // the database was not asked, which is no failure of the key
	refusals   uint8
	ends       uint32        // how often the windows of such keys had been ended, before the load
	waited     time.Duration // when the first wait for another's load began, on the loader's clock; 0: not yet
	patience   time.Duration // when a stale value is given out, on that clock; 0: none has been found
	soft       bool          // it waits for a fresh one
	renewal
}

// step is what is to be done next.
type step uint8

const (
	toBegin step = iota
	toAsk        // the filter
	toLearn      // the era
	toLook       // at what Redis holds
	toFetch      // the rest of a long entry
	toTake       // a lease, for there is nothing, or nothing that can be read
	toLoad
	toWait // for another's load
	over
	landed
)

// batch is the rounds of one flight: one key for a Get, many for a GetMany. Each method is a step for those that are at it, in one trip to
// Redis for all.
type batch[K comparable, V any] struct {
	l       *Loader[K, V]
	ctx     context.Context
	flight  *flight.Flight[K, state[V]]
	rounds  []*round[K, V] // that it is to bring to their end
	open    []*round[K, V] // those of them that have not landed
	refresh bool
	renewal bool // a refresh that nobody waits for, of entries that were read
	ended   bool
	parts   sync.WaitGroup // batches that went on by themselves
}

func (l *Loader[K, V]) batchOf(ctx context.Context, f *flight.Flight[K, state[V]], refresh bool) *batch[K, V] {
	for _, r := range f.Rounds {
		l.begin(r)
		r.Result.suspect = refresh
	}
	return &batch[K, V]{l: l, ctx: ctx, flight: f, rounds: f.Rounds, open: slices.Clone(f.Rounds), refresh: refresh}
}

// part lets the rounds that wait for others' loads go on by themselves, if there are some that load: neither delays the other.
func (b *batch[K, V]) part() {
	loading, waiting := at(b.open, toLoad), at(b.open, toWait)
	if len(loading) == 0 || len(waiting) == 0 {
		return
	}
	for _, r := range waiting {
		r.Result.step = toLook
	}
	b.leave(waiting)
}

// begin fixes what must be known of a round before its first look at Redis.
func (l *Loader[K, V]) begin(r *round[K, V]) {
	s := &r.Result
	if s.step != toBegin {
		return
	}
	if s.verdict == notAsked && !l.identify(r) {
		return
	}
	if l.memory != nil {
		s.stable = l.keys.Hash(s.text)
	}
	if l.cache.store == nil || s.bypass {
		l.takeGeneration(s)
		s.held = l.onHold(s)
		s.alone, s.step = true, toLoad
		return
	}
	s.name, s.hashed = l.keys.Name(s.text)
	s.place = uint8(l.cache.conn.Range(s.name))
	if l.memory != nil {
		l.cache.channel.Listen()
	}
	l.again(s)
}

// identify fixes which key it is, and whether the caches are on for it.
func (l *Loader[K, V]) identify(r *round[K, V]) bool {
	s := &r.Result
	var err error
	if s.text, err = l.encodeKey(r.Key); err != nil {
		r.Err, s.step = err, over
		return false
	}
	s.bypass = l.bypassed()
	return true
}

// more gives out what is over, and tells whether anything is left to do. When the callers have left, or the cache is closed, all is over.
func (b *batch[K, V]) more() bool {
	if b.ctx.Err() != nil {
		b.end() // before anybody is told
		for _, r := range b.open {
			if s := &r.Result; s.step < over {
				r.Err, s.step = b.l.stopped(b.ctx), over
			}
		}
	}
	if b.renewal && slices.ContainsFunc(b.rounds, func(r *round[K, V]) bool { return r.Result.spared }) {
		for _, r := range b.open { // the others would be refused, too
			r.Result.step = over
		}
	}
	b.land(b.open)
	b.open = slices.DeleteFunc(b.open, func(r *round[K, V]) bool { return r.Result.step == landed })
	return len(b.open) > 0
}

// land gives out those rounds that are over.
func (b *batch[K, V]) land(rounds []*round[K, V]) {
	done := at(rounds, over)
	for _, r := range done {
		r.Result.step = landed
		r.Result.waits(r.Err)
	}
	if b.l.filter != nil {
		b.l.letThrough(done)
	}
	if b.flight != nil {
		b.flight.Land(done)
	}
}

// at returns the rounds that are at this step: rounds itself if all are.
func at[K comparable, V any](rounds []*round[K, V], s step) (some []*round[K, V]) {
	n := 0
	for _, r := range rounds {
		if r.Result.step == s {
			n++
		}
	}
	if n == len(rounds) {
		return rounds
	}
	if n == 0 {
		return nil
	}
	some = make([]*round[K, V], 0, n)
	for _, r := range rounds {
		if r.Result.step == s {
			some = append(some, r)
		}
	}
	return some
}

// names are what the keys of rounds are called in Redis.
func names[K comparable, V any](rounds []*round[K, V]) []string {
	names := make([]string, len(rounds))
	for i, r := range rounds {
		names[i] = r.Result.name
	}
	return names
}

// attempts are those of rounds that ask Redis.
func (b *batch[K, V]) attempts(rounds []*round[K, V]) []*lease.Attempt {
	as := make([]*lease.Attempt, len(rounds))
	for i, r := range rounds {
		as[i] = b.l.attempt(&r.Result)
		if b.renewal {
			as[i].For(r.Result.stamp)
		}
		as[i].Young = b.l.young(&r.Result)
	}
	return as
}

func (l *Loader[K, V]) attempt(s *state[V]) *lease.Attempt {
	if s.attempt == nil {
		a := lease.NewAttempt(s.name, l.cache.options.LeaseTTL)
		s.attempt = &a
	}
	return s.attempt
}

// look reads what the keys hold.
func (b *batch[K, V]) look() {
	b.unasked(toLook)
	rounds := at(b.open, toLook)
	if len(rounds) == 0 {
		return
	}
	if b.l.cache.store == nil {
		b.l.lookInside(rounds)
	} else {
		b.l.cache.store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, held *lease.State, err error) { b.settle(rounds[i], held, err) })
		b.l.renewAll(rounds)
	}
	b.land(rounds)
}

// take asks for leases, where there is nothing, or nothing that can be read: the second check, in the same trip.
func (b *batch[K, V]) take() {
	b.unasked(toTake)
	rounds := at(b.open, toTake)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), maxCalls*b.l.chunk)] // no more than are loaded at once: the fleet waits for a leased key
	as := b.attempts(rounds)
	ctx, end := b.l.observe(b.ctx, OpLease, len(as))
	b.l.cache.store.Take(ctx, as)
	end(as[0].Err)
	for i, r := range rounds {
		b.settle(r, &as[i].State, as[i].Err)
	}
	b.l.renewAll(rounds)
	b.land(rounds)
	for _, r := range at(rounds, toTake) {
		r.Result.step = toLook // it has changed meanwhile, and can still not be read
	}
}

func (b *batch[K, V]) settle(r *round[K, V], held *lease.State, err error) {
	if b.ctx.Err() == nil { // else the callers have left: that is why, if a command has failed
		b.l.settle(r, held, err)
	}
}

// settle decides what follows from what a key holds.
func (l *Loader[K, V]) settle(r *round[K, V], held *lease.State, err error) {
	s := &r.Result
	s.soft = false
	if s.attempt != nil {
		s.attempt.Adopt(held)
	}
	var unread error
	if err == nil && held.Kind == lease.Stored {
		switch e := &held.Entry; {
		case e.Generation > s.era.Generation && !s.behind: // another process knows of an InvalidateAll that this one has not heard of
			s.behind = true
			l.again(s)
			return
		case e.Generation != s.era.Generation:
			l.counters.outdated.Add(1)
			l.attempt(s).State = lease.State{Kind: lease.Unknown, Raw: held.Raw} // to be replaced
			s.step = toTake
			return
		case held.Long:
			s.beginning, s.step = held.Raw, toFetch
			return
		}
		if unread = l.decode(s, &held.Entry); unread == nil {
			if l.found(r, &held.Entry) {
				return
			}
			l.counters.outdated.Add(1) // it has outlived what this process allows: to be replaced
			l.attempt(s).State = lease.State{Kind: lease.Unknown, Raw: held.Raw}
			s.step = toTake
			return
		}
		held.Kind = lease.Unknown
	}
	if held.Kind == lease.Unknown || held.Kind == lease.Absent {
		l.attempt(s).State = *held // for Take
	}
	switch {
	case err != nil:
		l.count(err)
		l.out(r, err)
	case held.Kind == lease.Unknown:
		l.counters.undecodable.Add(1)
		l.cache.journal.warn("an entry in Redis cannot be read, and is replaced", l.name, unread)
		s.step = toTake
	case held.Kind == lease.Absent:
		s.step = toTake
	case held.Kind == lease.Mine:
		s.waits(nil)
		s.step = toLoad
	case held.Kind == lease.Held:
		s.held, s.alone, s.step = true, true, toLoad
	case held.Kind == lease.Failed:
		l.counters.failedByMark.Add(1)
		r.Err, s.step = l.source.Failures.Err(s.text), over
	case held.Kind == lease.Busy:
		s.step = toWait
	}
}

// claim asks for the leases of keys that are to be refreshed, whatever they hold.
func (b *batch[K, V]) claim() {
	rounds := at(b.open, toLook)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), maxCalls*b.l.chunk)] // as in take
	b.l.cache.store.Claim(b.ctx, b.attempts(rounds))
	if b.ctx.Err() != nil {
		return
	}
	for _, r := range rounds {
		switch s := &r.Result; {
		case s.attempt.Err != nil:
			b.l.count(s.attempt.Err)
			r.Err, s.step = redisError(s.attempt.Err), over
		case s.attempt.State.Kind == lease.Mine:
			s.step = toLoad
			if b.renewal {
				b.l.renewed(s)
			}
		case b.renewal: // another does it, or has done it
			s.step, s.busy = over, s.attempt.State.Kind == lease.Busy
		case s.attempt.State.Kind == lease.Held:
			s.held, s.alone, s.step = true, true, toLoad
		default:
			s.step = toWait
		}
	}
}

// end gives up what the rounds still hold in Redis, on whatever way they ended.
func (b *batch[K, V]) end() {
	if b.ended {
		return
	}
	b.ended = true
	var held, later []*lease.Attempt
	for _, r := range b.rounds {
		switch a := r.Result.attempt; {
		case a == nil, !a.Holds() && !a.Owes(): // a hit, or a load that has ended as it should
		case !a.Holds(), r.Result.lost, b.l.cache.conn.Down(int(r.Result.place)) != nil: // a lease that was asked for in vain may yet be given; or Redis does not answer: nobody waits
			later = append(later, a)
		default:
			held = append(held, a)
		}
	}
	b.release(held)
	if len(later) > 0 {
		b.l.background.Go(func() { b.release(later) })
	}
}

func (b *batch[K, V]) release(as []*lease.Attempt) {
	if len(as) > 0 {
		b.l.cache.store.Release(context.WithoutCancel(b.ctx), as)
		b.l.countWrites(as)
	}
}

// stopped counts rounds that their callers have left, one by one.
func (l *Loader[K, V]) stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		l.counters.abandoned.Add(1)
	}
	return ended(ctx)
}

// count makes an error of Redis seen that no caller is told of.
func (l *Loader[K, V]) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.counters.redisErrors.Add(1)
	}
}

// countWrite does so for what was to be stored, renewed or given up.
func (l *Loader[K, V]) countWrite(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.counters.redisErrors.Add(1)
		l.counters.writeErrors.Add(1)
	}
}

func (l *Loader[K, V]) countWrites(as []*lease.Attempt) {
	for _, a := range as {
		l.countWrite(a.Err)
	}
}
