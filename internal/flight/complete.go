package flight

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// Flight is the rounds that are under way together. Each is brought to its end by Complete, which
// any goroutine may call.
type Flight[K comparable, R any] struct {
	Rounds []*Round[K, R]

	group   *Group[K, R]
	values  *lent.Context // of ctx: the first caller's, until it leaves
	ctx     context.Context
	cancel  context.CancelCauseFunc
	callers atomic.Int64 // of the rounds that have not completed
	open    atomic.Int64 // rounds that have not completed
	done    chan struct{}
}

// take makes a flight of rounds whose first looks have not ended them, or that have gathered.
// values are those of the flight's context.
func (g *Group[K, R]) newFlight(values *lent.Context, rounds []*Round[K, R]) *Flight[K, R] {
	f := &Flight[K, R]{group: g, Rounds: rounds, values: values, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(values)
	f.open.Store(int64(len(rounds)))
	f.callers.Store(1) // until all rounds are in it: a caller that leaves meanwhile must not seem to be the last
	for _, r := range rounds {
		s := r.shard
		s.mu.Lock()
		r.flight, r.values = f, nil
		f.callers.Add(int64(r.callers))
		closed := s.closed
		s.mu.Unlock()
		if closed {
			f.cancel(g.cause)
		}
	}
	if f.callers.Add(-1) == 0 { // they left before they could be told where to
		f.abandon()
	}
	return f
}

// abandon tells f, whose last caller has left, to stop. If it was Close that made them leave, Close
// tells it itself, and why.
func (f *Flight[K, R]) abandon() {
	if !f.group.Closed() {
		f.cancel(ErrAbandoned)
	}
}

var errNotCompleted = errors.New("a round was not completed")

// fly runs f to its end, whatever that is.
func (g *Group[K, R]) run(f *Flight[K, R]) {
	defer g.flights.Done()
	returned := false
	defer func() {
		err := errNotCompleted
		if !returned {
			err = g.hooks.Caught(recover())
		}
		if f.open.Load() == 0 {
			return
		}
		var open []*Round[K, R]
		for _, r := range f.Rounds {
			s := r.shard
			s.mu.Lock()
			completed := r.completed
			s.mu.Unlock()
			if !completed {
				r.Err = err
				open = append(open, r)
			}
		}
		f.Complete(open)
	}()
	g.hooks.Run(f.ctx, f)
	returned = true
}

// TakeIn has those who have gathered behind r, which is of the flight and has not completed, get
// what r will get. Only what is read from now on may be given to them: nothing that the flight has
// learned before. Callers that come later gather for the next round.
func (f *Flight[K, R]) TakeIn(r *Round[K, R]) {
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	gathered := r.next
	if gathered == nil || r.completed || !f.addCallers(int64(gathered.callers)) {
		return
	}
	gathered.flight, gathered.values = f, nil
	gathered.prevTakenIn, r.takenIn, r.next = r.takenIn, gathered, nil
}

// stay counts more callers, but in a flight that all have left, which was told to stop: it has
// nothing to give.
func (f *Flight[K, R]) addCallers(more int64) bool {
	for {
		n := f.callers.Load()
		if n == 0 {
			return false
		}
		if f.callers.CompareAndSwap(n, n+more) {
			return true
		}
	}
}

// Complete gives out what rounds of the flight have got. The rounds that have gathered behind them
// begin together.
func (f *Flight[K, R]) Complete(rounds []*Round[K, R]) {
	if len(rounds) == 0 {
		return
	}
	f.group.complete(f, rounds)
}

// complete ends rounds of f, or one that has no flight.
func (g *Group[K, R]) complete(f *Flight[K, R], rounds []*Round[K, R]) {
	var next []*Round[K, R]
	callers := 0
	for _, r := range rounds {
		waiting, n := g.completeOne(r)
		callers += waiting
		if n != nil {
			next = append(next, n)
		}
	}
	if len(next) > 0 {
		g.flights.Add(1) // while this flight counts
		go g.run(g.newFlight(next[0].values, next))
	}
	if f == nil {
		return
	}
	remaining := f.callers.Add(int64(-callers))
	switch open := f.open.Add(int64(-len(rounds))); {
	case open == 0:
		close(f.done)
		f.cancel(nil)
	case remaining == 0:
		f.abandon() // nobody waits for the rest
	}
}

// landOne ends a round. It answers how many waited for it, and the round that begins now.
func (g *Group[K, R]) completeOne(r *Round[K, R]) (callers int, starting *Round[K, R]) {
	s := r.shard
	s.mu.Lock()
	r.completed = true
	callers = int(r.callers)
	next, takenIn, done := r.next, r.takenIn, r.done
	r.next, r.takenIn = nil, nil
	for n := takenIn; n != nil; n = n.prevTakenIn {
		n.Result, n.Err, n.completed = r.Result, r.Err, true
		callers += int(n.callers)
	}
	shared := next != nil && !s.closed && r.Err == nil && g.hooks.StillValid(&r.Result)
	switch {
	case next == nil || s.closed:
		delete(s.running, r.Key)
	case shared:
		delete(s.running, r.Key)
		next.Result, next.completed = r.Result, true
	default:
		s.running[r.Key] = next
		starting = next
	}
	s.mu.Unlock()
	if done != nil {
		close(done)
	}
	for n := takenIn; n != nil; n = n.prevTakenIn {
		close(n.done)
	}
	if shared {
		close(next.done)
	}
	return callers, starting
}

// Completed tells whether the round has been brought to its end.
func (r *Round[K, R]) Completed() bool {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	return r.completed
}

// await waits until done is closed, which is when r has completed.
func (g *Group[K, R]) await(ctx context.Context, r *Round[K, R], done <-chan struct{}) (*R, error) {
	if g.hooks.Await != nil {
		onEnd, refused := g.hooks.Await(ctx, r.self[:])
		if refused != nil && !g.leave(r) {
			return nil, refused[0]
		}
		if onEnd != nil {
			defer onEnd()
		}
	}
	ctxDone := ctx.Done()
	select {
	case <-done:
		return &r.Result, r.Err
	case <-ctxDone:
		g.leave(r)
		return nil, ctx.Err()
	case <-g.closed:
		g.leave(r)
		return nil, g.cause
	}
}

// awaitAll waits until all rounds have completed, those of the flight own and others, or there is a
// reason to stop waiting. It notes in errs why a caller gets nothing of a round.
func (g *Group[K, R]) awaitAll(ctx context.Context, own *Flight[K, R], rounds []*Round[K, R], errs []error) {
	var stopped error
	if g.hooks.Await != nil {
		onEnd, refused := g.hooks.Await(ctx, rounds)
		if onEnd != nil {
			defer onEnd()
		}
		stopped = g.refuse(rounds, errs, refused)
	}
	if stopped == nil {
		stopped = g.awaitRounds(ctx, own, rounds)
	}
	for i, r := range rounds {
		if stopped != nil && r != nil && !g.leave(r) {
			errs[i] = stopped
		}
	}
}

// refuse leaves rounds that are not to be waited for. If one of them is of the caller's own flight,
// which would go on with it, the caller waits for none, and refuse returns why.
func (g *Group[K, R]) refuse(rounds []*Round[K, R], errs, refused []error) error {
	for i, err := range refused {
		if err != nil && rounds[i].done == nil {
			return err
		}
	}
	for i, err := range refused {
		if err != nil && !g.leave(rounds[i]) {
			rounds[i], errs[i] = nil, err
		}
	}
	return nil
}

// awaitRounds waits until all rounds have completed, or answers why it does not.
func (g *Group[K, R]) awaitRounds(ctx context.Context, own *Flight[K, R], rounds []*Round[K, R]) error {
	wait := func(done <-chan struct{}) error {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-g.closed:
			return g.cause
		}
	}
	if own != nil {
		if err := wait(own.done); err != nil {
			return err
		}
	}
	for _, r := range rounds {
		if r != nil && r.done != nil {
			if err := wait(r.done); err != nil {
				return err
			}
		}
	}
	return nil
}
