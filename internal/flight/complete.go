package flight

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// A Flight is a group of rounds that run together. Complete may be called by any goroutine.
type Flight[K comparable, R any] struct {
	Rounds []*Round[K, R]

	group   *Group[K, R]
	values  *lent.Context // the values of ctx: the first caller's, until it leaves
	ctx     context.Context
	cancel  context.CancelCauseFunc
	callers atomic.Int64 // callers of rounds that have not completed
	open    atomic.Int64 // number of rounds that have not completed
	done    chan struct{}
}

// newFlight returns a flight of rounds that Hooks.Inline did not end, or that have gathered.
// values are the values of the flight's context.
func (g *Group[K, R]) newFlight(values *lent.Context, rounds []*Round[K, R]) *Flight[K, R] {
	f := &Flight[K, R]{group: g, Rounds: rounds, values: values, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(values)
	f.open.Store(int64(len(rounds)))
	// While rounds are added, a caller that leaves must not seem to be the last one.
	f.callers.Store(1)
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
	if f.callers.Add(-1) == 0 { // all callers left before the flight was complete
		f.abandon()
	}
	return f
}

// abandon cancels f, whose last caller has left. If the callers left because of Close, Close
// cancels f, with its own cause.
func (f *Flight[K, R]) abandon() {
	if !f.group.Closed() {
		f.cancel(ErrAbandoned)
	}
}

var errNotCompleted = errors.New("a round was not completed")

// run runs f, and completes the rounds that Hooks.Run did not complete because it panicked or
// returned early.
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

// TakeIn lets the callers that have gathered behind r, a round of the flight, share r's result.
// It has no effect if r has completed. The result must be read after this call: it must not
// depend on anything that the flight has read before. Callers that come later gather for the next
// round.
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

// addCallers adds callers to the flight. It returns false if all callers have left, because then
// the flight was canceled and has no result.
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

// Complete passes the results of rounds of the flight to their callers. The rounds that have
// gathered behind them start together.
func (f *Flight[K, R]) Complete(rounds []*Round[K, R]) {
	if len(rounds) == 0 {
		return
	}
	f.group.complete(f, rounds)
}

// complete completes rounds of f, or of no flight if f is nil.
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
		g.flights.Add(1) // before the current flight ends
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
		f.abandon() // no caller waits for the other rounds
	}
}

// completeOne completes a round. It returns the number of its callers, and the round that starts
// now.
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

// Completed reports whether the round has completed.
func (r *Round[K, R]) Completed() bool {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	return r.completed
}

// await waits until done is closed, which happens when r completes.
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

// awaitAll waits until all rounds have completed, those of the flight own and others, or until
// the wait is aborted. It sets errs for the rounds that have no result for the caller.
func (g *Group[K, R]) awaitAll(ctx context.Context, flight *Flight[K, R], rounds []*Round[K, R], errs []error) {
	var stopped error
	if g.hooks.Await != nil {
		onEnd, refused := g.hooks.Await(ctx, rounds)
		if onEnd != nil {
			defer onEnd()
		}
		stopped = g.refuse(rounds, errs, refused)
	}
	if stopped == nil {
		stopped = g.awaitRounds(ctx, flight, rounds)
	}
	for i, r := range rounds {
		if stopped != nil && r != nil && !g.leave(r) {
			errs[i] = stopped
		}
	}
}

// refuse removes the caller from rounds that it must not wait for. If such a round is in the
// caller's own flight, leaving it would not end it: the flight would continue. In that case refuse
// returns the error, and the caller waits for no round.
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

// awaitRounds waits until all rounds have completed, or returns the reason why it stopped.
func (g *Group[K, R]) awaitRounds(ctx context.Context, flight *Flight[K, R], rounds []*Round[K, R]) error {
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
	if flight != nil {
		if err := wait(flight.done); err != nil {
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
