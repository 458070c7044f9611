package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// contest is one Acquire. It asks in rounds, each with an id of its own: a node carries out the
// request of a round once at most.
type contest struct {
	d       *redlockDriver
	keys    []string // of the lock and of the token
	ttl     time.Duration
	timeout time.Duration
	token   bool
	given   []any // ids of rounds that were given up: what they may have left is taken over
}

// round asks all nodes for their votes.
type round struct {
	*contest
	id      string
	olds    []any     // given, at the time
	sent    time.Time // before the first request
	ballots []ballot
}

// ballot is the vote of one node, and then what has become of it.
type ballot struct {
	known  chan struct{} // closed when the request for it is over; what is below is written before
	answer answer
	err    error

	asked    atomic.Bool  // there was, or is going to be, a request
	bound    atomic.Int64 // of the request, by the clock of the node; 0: not yet sent; finished: none is sent any more
	freed    atomic.Bool  // nothing of it is left, and nothing will come
	freeing  atomic.Int32 // requests to free it that are under way, or whose outcome is not known
	settling atomic.Bool
}

const finished = -1

// keepGiven is how many rounds before may still have a vote somewhere.
const keepGiven = 4

func (c *contest) newRound() *round {
	r := &round{contest: c, id: rand.Text(), olds: slices.Clone(c.given), sent: time.Now(), ballots: make([]ballot, len(c.d.nodes))}
	for i := range r.ballots {
		r.ballots[i].known = make(chan struct{})
	}
	return r
}

// vote asks one node for the lock. The request goes on when its caller leaves, so that it is known
// what has become of it.
func (r *round) vote(ctx context.Context, i int) (bool, error) {
	b, began := &r.ballots[i], time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	b.asked.Store(true)
	if ctx.Err() != nil { // the round is over, and may have been settled, which looks at asked after the end of ctx
		b.asked.Store(false)
		return false, context.Cause(ctx)
	}
	if !r.d.nodes[i].conn.Apart(func() {
		defer close(b.known)
		ctx, cancel := detached(ctx, r.timeout)
		defer cancel()
		b.answer, b.err = r.ask(ctx, i)
	}) {
		b.asked.Store(false)
		return false, conn.ErrClosed
	}
	select {
	case <-b.known:
		return b.yes(), r.d.nodes[i].explain(b.err, "a request for the lock", began)
	case <-ctx.Done():
		return false, r.d.nodes[i].explain(context.Cause(ctx), "a request for the lock", began)
	}
}

// ask sends the request, and once more if it is known that it was not carried out since its time
// was over.
func (r *round) ask(ctx context.Context, i int) (answer, error) {
	n, last := r.d.nodes[i], int64(0)
	for again := false; ; again = true {
		bound, err := n.bound(ctx, r.timeout)
		if err != nil || ctx.Err() != nil {
			return answer{}, errors.Join(err, ctx.Err())
		}
		if !r.ballots[i].bound.CompareAndSwap(last, bound) { // settleAt has seen to the one before
			return answer{}, errJumps
		}
		last = bound
		sent := time.Now()
		reply, err := n.eval(ctx, redlockAcquire, r.keys, slices.Concat([]any{r.id, r.ttl.Milliseconds(), bound}, r.olds)...)
		if err == nil {
			n.clock.Store(&reading{sent, reply.now})
		}
		switch {
		case err == nil && reply.status == isTwice:
			return reply, errSameServer
		case err == nil && reply.status == isLate && again:
			return reply, errJumps
		case err != nil || reply.status != isLate:
			return reply, err
		}
	}
}

// now tells whether a vote is known by now.
func (b *ballot) now() bool {
	select {
	case <-b.known:
		return true
	default:
		return false
	}
}

func (b *ballot) yes() bool { return b.err == nil && b.answer.status == isGranted }

// nothing tells whether it is known that the node has nothing of the round, and will not have: it
// has refused, or was not asked.
func (b *ballot) nothing() bool {
	switch {
	case b.freed.Load(), !b.asked.Load():
		return true
	case !b.now() || b.yes():
		return false
	}
	return b.err == nil || b.bound.Load() == 0 || conn.IsReply(b.err) || unsent(b.err) || errors.Is(b.err, errSameServer) || errors.Is(b.err, errJumps)
}

// unsent tells whether there was no connection to send a request by.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// run asks for the lock, and then has the nodes store its token. It may leave votes: see settle.
func (r *round) run(ctx context.Context) (int64, error) {
	if err := r.d.mutex(r.ttl, r.vote, nil).TryLockContext(ctx); err != nil || !r.token {
		return 0, err
	}
	token := r.candidate()
	store := func(ctx context.Context, i int) (bool, error) {
		return r.touch(ctx, i, redlockToken, token)
	}
	left := time.Until(r.sent.Add(r.ttl))
	ok, err := r.d.mutex(max(left, time.Millisecond), nil, store).ExtendContext(ctx)
	if !ok {
		return 0, fmt.Errorf("the token: %w", err)
	}
	return token, nil
}

// candidate is a token greater than each that was stored on one of the nodes that have voted, and
// than their time: so it is greater than what they have forgotten.
func (r *round) candidate() int64 {
	token := int64(0)
	for i := range r.ballots {
		if b := &r.ballots[i]; b.now() && b.yes() {
			token = max(token, b.answer.value+1, b.answer.now)
		}
	}
	return token
}

// touch runs a script on the lock at a node that may have voted for it.
func (r *round) touch(ctx context.Context, i int, s conn.Script, arg any) (bool, error) {
	if r.ballots[i].nothing() {
		return false, nil
	}
	reply, err := r.send(ctx, i, s, r.id, arg)
	return err == nil && reply.status == isGranted, err
}

// send waits for the time-out at most.
func (r *round) send(ctx context.Context, i int, s conn.Script, args ...any) (answer, error) {
	type result struct {
		answer
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	n, c, began := r.d.nodes[i], make(chan result, 1), time.Now()
	if !n.conn.Apart(func() {
		ctx, cancel := detached(ctx, r.timeout)
		defer cancel()
		var got result
		for range conn.MaxStale {
			got.answer, got.err = n.eval(ctx, s, r.keys, args...)
			if !conn.Stale(got.err) || ctx.Err() != nil {
				break
			}
		}
		c <- got
	}) {
		return answer{}, conn.ErrClosed
	}
	select {
	case got := <-c:
		return got.answer, n.explain(got.err, "a request about the lock", began)
	case <-ctx.Done():
		return answer{}, n.explain(context.Cause(ctx), "a request about the lock", began)
	}
}
