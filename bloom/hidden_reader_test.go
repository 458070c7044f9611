package bloom

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// read looks keys up in several ways, all the time.
func (h *hidden) read() {
	var all sync.WaitGroup
	for n, how := range []func(*rand.Rand){h.readPlain, h.readOld, h.readAnew, h.readReplica} {
		all.Go(func() {
			r := h.random(uint64(n))
			for !h.ended() {
				how(r)
			}
		})
	}
	all.Wait()
}

const atOnce = 400

// readPlain is by a filter that lives for some seconds.
func (h *hidden) readPlain(r *rand.Rand) {
	f := h.filter(1000, 0.01)
	defer f.Close()
	for end := time.Now().Add(time.Duration(r.Int64N(int64(5 * time.Second)))); time.Now().Before(end) && !h.ended(); {
		h.check(r, "plain", f, f.MightContainMany, h.pick(r, atOnce, clock()))
	}
}

// readOld is by one that has not read the descriptor for long: by one that it has known, of any
// age.
func (h *hidden) readOld(r *rand.Rand) {
	f := h.filter(1000, 0.01)
	defer f.Close()
	var before []*cachedDescriptor
	for !h.ended() {
		h.check(r, "old", f, f.MightContainMany, h.pick(r, atOnce, clock()), oldChecks)
		if d := f.cached.Load(); d != nil && d.Active != nil &&
			(len(before) == 0 || before[len(before)-1].raw != d.raw) {
			before = append(before, d)
		}
		if len(before) > 20 {
			before = before[1:]
		}
		if n := len(before); n > 0 && r.IntN(3) == 0 {
			f.cached.Store(before[n-1-r.IntN(min(n, 1+r.IntN(20)))])
		}
	}
}

// readAnew is by one that knows nothing.
func (h *hidden) readAnew(r *rand.Rand) {
	f := h.filter(1000, 0.01)
	defer f.Close()
	h.check(r, "new", f, f.MightContainMany, h.pick(r, atOnce, clock()))
}

// readReplica is by a Replica that lives for some seconds.
func (h *hidden) readReplica(r *rand.Rand) {
	f, replica := h.replica()
	defer f.Close()
	defer replica.Close()
	for end := time.Now().Add(time.Duration(r.Int64N(int64(10 * time.Second)))); time.Now().Before(end) && !h.ended(); {
		what := []int{heldChecks}
		if replica.Stats().Copied {
			what = append(what, copyChecks) // as a rule
		}
		h.check(r, "replica", f, replica.MightContainMany, h.pick(r, atOnce, clock()-int64(h.config.Staleness)),
			what...)
		if r.IntN(20) == 0 {
			h.check(r, "replica, fresh", f, replica.MightContainFresh, h.pick(r, atOnce, clock()), freshChecks)
		}
		if one := h.pick(r, 1, clock()-int64(h.config.Staleness)); len(one) == 1 {
			h.check(r, "replica, one by one", f, singly(replica.MightContain), one, heldChecks)
		}
		time.Sleep(time.Duration(r.Int64N(int64(4 * time.Millisecond)))) // leaves time for the other processes
	}
}

func (h *hidden) replica() (*Redis, *Replica) {
	f := h.filter(1000, 0.01)
	replica, err := NewReplica(f)
	if err != nil {
		panic(err)
	}
	return f, replica
}

// singly asks for keys one by one.
func singly(ask func(context.Context, string) (bool, error)) asker {
	return func(ctx context.Context, keys []string) (maybe []bool, err error) {
		for _, key := range keys {
			m, err2 := ask(ctx, key)
			maybe, err = append(maybe, m), cmp.Or(err, err2)
		}
		return maybe, err
	}
}
