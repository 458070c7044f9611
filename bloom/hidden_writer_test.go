package bloom

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// write adds new rows by all routes.
func (h *hidden) write() {
	f, replica := h.replica()
	defer f.Close()
	defer replica.Close()
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			r := h.random(uint64(n))
			for !h.ended() {
				if !h.ahead() && !h.writeSome(r, f, replica) {
					return
				}
				time.Sleep(time.Duration(r.Int64N(int64(h.config.Slow))))
			}
		})
	}
	all.Wait()
}

// ahead reports whether the rows would be used up before the checks are done.
func (h *hidden) ahead() bool {
	c := h.config
	return c.Until > 0 && h.get(next)*c.Until > (h.get(checks)+c.Until/20)*int64(c.Rows)
}

func (h *hidden) writeSome(r *rand.Rand, f *Redis, replica *Replica) bool {
	route, n := max(byAdd, r.IntN(6)-2), 1
	if route != byAdd && r.IntN(2) == 0 {
		n = 1 + r.IntN(20)
		if r.IntN(50) == 0 {
			n = 2000
		}
	}
	first, ok := h.take(n)
	if !ok {
		return false
	}
	rows := make([]int, n)
	for i := range rows {
		rows[i] = first + i
	}
	ctx := context.Background()
	switch keys := h.keys(rows); route {
	case byAdd:
		h.commit(first, n)
		h.insist(func() error { return f.Add(ctx, keys[0]) })
		h.count(added, n)
	case byAddMany:
		h.commit(first, n)
		h.insist(func() error { return f.AddMany(ctx, keys) })
		h.count(addedMany, n)
	default:
		if route, ok = h.admit(r, f, first, keys); !ok {
			return true
		}
	}
	if h.ended() {
		return true
	}
	h.promise(first, n, route)
	if r.IntN(2) == 0 {
		h.check(r, "writer", f, f.MightContainMany, rows, ownChecks)
	}
	h.check(r, "writer's replica", f, replica.MightContainMany, rows, ownChecks, heldChecks)
	return true
}

// admit inserts by a transaction. It returns false if nothing was promised.
func (h *hidden) admit(r *rand.Rand, f *Redis, first int, keys []string) (route int, promised bool) {
	ctx, began := context.Background(), clock()
	committed, err := f.Inserting(ctx, keys)
	if err != nil || r.IntN(20) == 0 {
		h.count(rolledBack, len(keys))
		return 0, false
	}
	if r.IntN(2) == 0 {
		time.Sleep(time.Duration(r.Int64N(int64(settle))) << r.IntN(4))
	}
	h.commit(first, len(keys))
	took := clock() - began
	if r.IntN(8) == 0 { // as if the process had died
		h.count(uncommitted, len(keys))
		return bySettle, took < int64(settle)
	}
	h.insist(func() error { return committed(ctx) })
	h.count(admitted, len(keys))
	return byCommitted, true
}

// insist repeats what has failed.
func (h *hidden) insist(f func() error) {
	for !h.ended() && f() != nil {
		h.count(failedAdds, 1)
		time.Sleep(5 * time.Millisecond)
	}
}
