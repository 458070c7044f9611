package lock

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// free ends the lock at one node. It returns true if the node had it.
func (r *round) free(ctx context.Context, i int) (reply answer, had bool, err error) {
	b := &r.ballots[i]
	for range conn.MaxStale {
		reply, had, err = r.freeOnce(ctx, b, i)
		if !conn.Stale(err) || ctx.Err() != nil {
			break
		}
	}
	return reply, had, err
}

func (r *round) freeOnce(ctx context.Context, b *ballot, i int) (answer, bool, error) {
	had := b.now() && b.yes() // before it is asked: a grant that is known when it has answered may be later than that
	doubt := b.freeing.Add(1) > 1
	reply, err := r.d.nodes[i].eval(ctx, redlockRelease, r.keys[:1], r.id)
	if err != nil {
		return reply, false, err
	}
	b.freeing.Add(-1)
	// If it is gone, and there was a request to free it whose reply is lost, that was it.
	if reply.status == isGranted || doubt && had {
		b.freed.Store(true)
	}
	return reply, b.freed.Load(), nil
}

// finish has no request be sent after that with this bound. It answers false if there was one.
func (b *ballot) finish(bound int64) bool {
	return b.bound.CompareAndSwap(bound, finished)
}

// settle sees to it, in the background, that nothing is left of a round that has not got the lock,
// or has released it: not by requests that may yet be carried out, either.
func (r *round) settle() {
	for i := range r.ballots {
		b := &r.ballots[i]
		if !b.nothing() && b.settling.CompareAndSwap(false, true) {
			r.d.nodes[i].conn.Apart(func() { r.settleAt(i) })
		}
	}
}

// settleAt frees the lock at one node until the node has said that it has nothing, and its clock
// has passed the bound after which it refuses what is under way, or until the lock has outlived
// itself. After Close it goes on for one time-out: a context and a Locker often end together.
func (r *round) settleAt(i int) {
	b, n := &r.ballots[i], r.d.nodes[i]
	end := time.Now().Add(r.ttl + r.timeout)
	closing, known := n.wakes.ctx.Done(), b.known
	for pause := 5 * time.Millisecond; time.Now().Before(end) && !b.nothing(); pause = min(2*pause, time.Second) {
		if bound := b.bound.Load(); bound > 0 {
			before := b.now()
			ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
			reply, _, err := r.free(ctx, i)
			cancel()
			switch over := reply.now - bound; {
			case err == nil && (before && b.yes() || over > 0 && b.finish(bound)): // nothing can come any more
				b.freed.Store(true)
				return
			case err == nil && over <= 0:
				pause = min(pause, time.Duration(-over)*time.Microsecond+time.Millisecond)
			}
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-known:
			known = nil // once
		case <-closing:
			closing = nil
			if last := time.Now().Add(r.timeout); last.Before(end) {
				end = last
			}
		}
		t.Stop()
	}
}
