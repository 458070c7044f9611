package redlock

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// waiter is how a caller that waits hears of a release: from each node.
type waiter struct {
	d     *nodes
	key   string
	heard []*redislock.Wake // by node; nil until it is needed
}

// pollAtLeast is how often a lock is asked for by a caller that hears nothing: messages can be
// lost, and so can the votes of somebody who has died in the middle of a round.
const pollAtLeast = time.Second

// wait returns when there is reason to ask anew: so many nodes have told of a release that with
// those that were free before they are a majority; or the lives of the locks there are over. A few
// free nodes are no reason: the lock may be held on the others, and each contender that asks in
// vain tells the rest of it, by giving back what it has got.
func (w *waiter) wait(ctx context.Context, r *round, took time.Duration) error {
	if w.heard == nil {
		for _, n := range w.d.all {
			w.heard = append(w.heard, n.wakes.Watch(w.key))
		}
	}
	free, left := r.openings()
	t := time.NewTimer(left + rand.N(min(left/10, 50*time.Millisecond)+2*time.Millisecond))
	defer t.Stop()
	cases := make([]reflect.SelectCase, 0, len(w.heard)+2)
	for _, k := range w.heard {
		cases = append(cases, receive(k.C))
	}
	cases = append(cases, receive(t.C), receive(ctx.Done()))
	for {
		switch i, _, _ := reflect.Select(cases); i {
		case len(w.heard):
			return nil
		case len(w.heard) + 1:
			return context.Cause(ctx)
		default:
			free[i] = true
		}
		if n := len(slices.DeleteFunc(slices.Clone(free), func(f bool) bool { return !f })); n >= w.d.quorum {
			return retry.Sleep(ctx, rand.N(min(max(took, time.Millisecond), 10*time.Millisecond))) // others were told, too
		}
	}
}

func receive(c any) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// openings are the nodes that have voted for the round, and the time until a majority is free if
// nobody releases anything.
func (r *round) openings() (free []bool, left time.Duration) {
	free = make([]bool, len(r.ballots))
	lives := make([]time.Duration, len(r.ballots))
	for i, b := range r.ballots {
		switch {
		case !b.over() || b.err != nil:
			lives[i] = pollAtLeast
		case b.answer.Status == redislock.IsHeld:
			lives[i] = time.Duration(b.answer.Value) * time.Millisecond
		default:
			free[i] = true
		}
	}
	slices.Sort(lives)
	return free, min(lives[r.d.quorum-1], pollAtLeast)
}

// forget drops what was told before a round: it sees for itself.
func (w *waiter) forget() {
	for _, k := range w.heard {
		select {
		case <-k.C:
		default:
		}
	}
}

func (w *waiter) leave() {
	for _, k := range w.heard {
		k.Leave()
	}
}
