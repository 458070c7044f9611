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

// waiter waits for the release of a lock. It receives messages from each node.
type waiter struct {
	nodes *nodes
	key   string
	wakes []*redislock.Wake // one for each node; nil until the first wait
}

// maxPoll is the longest interval between two requests for a lock without messages. Messages may
// be lost, and so may the votes of a process that died during a round.
const maxPoll = time.Second

// wait returns when the caller should request the lock again. That is when the nodes that have
// announced a release and those that were free before form a majority, or when the locks on a
// majority expire. A minority of free nodes is not enough: the lock may be held on the others,
// and each failed round wakes the other contenders when it frees its votes.
func (w *waiter) wait(ctx context.Context, r *round, took time.Duration) error {
	if w.wakes == nil {
		for _, n := range w.nodes.all {
			w.wakes = append(w.wakes, n.wakes.Watch(w.key))
		}
	}
	free, remaining := r.freeNodes()
	t := time.NewTimer(remaining + rand.N(min(remaining/10, 50*time.Millisecond)+2*time.Millisecond))
	defer t.Stop()
	cases := make([]reflect.SelectCase, 0, len(w.wakes)+2)
	for _, k := range w.wakes {
		cases = append(cases, receive(k.C))
	}
	cases = append(cases, receive(t.C), receive(ctx.Done()))
	for {
		switch i, _, _ := reflect.Select(cases); i {
		case len(w.wakes):
			return nil
		case len(w.wakes) + 1:
			return context.Cause(ctx)
		default:
			free[i] = true
		}
		if n := len(slices.DeleteFunc(slices.Clone(free), func(f bool) bool { return !f })); n >= w.nodes.quorum {
			// other contenders wake, too
			return retry.Sleep(ctx, rand.N(min(max(took, time.Millisecond), 10*time.Millisecond)))
		}
	}
}

func receive(c any) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)}
}

// freeNodes returns which nodes were free in the round, and the time until a majority is free if
// no lock is released earlier.
func (r *round) freeNodes() (free []bool, remaining time.Duration) {
	free = make([]bool, len(r.ballots))
	lives := make([]time.Duration, len(r.ballots))
	for i, b := range r.ballots {
		switch {
		case !b.finished() || b.err != nil:
			lives[i] = maxPoll
		case b.reply.Status == redislock.IsHeld:
			lives[i] = time.Duration(b.reply.Value) * time.Millisecond
		default:
			free[i] = true
		}
	}
	slices.Sort(lives)
	return free, min(lives[r.nodes.quorum-1], maxPoll)
}

// drain discards messages that arrived before a new round, because the round sees the current
// state.
func (w *waiter) drain() {
	for _, k := range w.wakes {
		select {
		case <-k.C:
		default:
		}
	}
}

func (w *waiter) close() {
	for _, k := range w.wakes {
		k.Leave()
	}
}
