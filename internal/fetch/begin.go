package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
)

// begin fixes what must be known of a round before its first look at Redis.
func (l *Fetcher) begin(r *Round) {
	if r.step != toBegin {
		return
	}
	if r.verdict == notAsked {
		r.bypass = l.Bypassed()
	}
	if l.Memory != nil {
		r.stable = l.Keys.Hash(r.text)
	}
	if l.cache.Store == nil || r.bypass {
		l.takeSnapshot(r)
		r.onHold = l.onHold(r)
		r.withoutLease, r.step = true, toLoad
		return
	}
	r.name, r.hashed = l.Keys.Name(r.text)
	r.slotRange = uint8(l.cache.Conn.Range(r.name))
	if l.Memory != nil {
		l.cache.Bus.Listen()
	}
	l.again(r)
}

// onHold tells, without Redis, whether the key of a round is on hold. The round has taken its
// snapshot before, and an invalidation sets the hold before it raises the memory version: so a load
// that is not told of the hold is not put into memory.
func (l *Fetcher) onHold(r *Round) bool {
	if l.cache.Holds == nil {
		return false
	}
	since := l.Generations[0].Load().Since
	return l.cache.Holds.Held(l.Keys.Hash(r.text)) || !since.IsZero() && time.Since(since) < l.cache.ReplicaLag
}

// learn asks Redis of which generation the loader's entries are, where that is not known, or not
// known to be still so.
func (b *batch) learn() {
	b.skipRedis(toLearn)
	rounds := at(b.open, toLearn)
	if len(rounds) == 0 {
		return
	}
	errs := b.l.learn(b.ctx, rounds, b.refresh)
	if b.ctx.Err() != nil {
		return
	}
	for i, r := range rounds {
		switch {
		case errs[i] != nil && b.refresh:
			r.Err, r.step = fault.OfRedis(errs[i]), over
		case errs[i] != nil:
			b.l.withoutRedis(r, errs[i])
		}
	}
}

// learn has rounds that are at that step go on to look, or answers why they cannot.
func (l *Fetcher) learn(ctx context.Context, rounds []*Round, patient bool) []error {
	var asked [conn.Ranges]bool
	for _, r := range rounds {
		asked[r.slotRange] = true
	}
	var errs [conn.Ranges]error
	var all sync.WaitGroup
	for slotRange := range uint8(conn.Ranges) {
		if asked[slotRange] {
			all.Go(func() { errs[slotRange] = l.confirm(ctx, slotRange, patient) })
		}
	}
	all.Wait()
	out := make([]error, len(rounds))
	for i, r := range rounds {
		if out[i] = errs[r.slotRange]; out[i] != nil {
			l.count(out[i])
			continue
		}
		l.takeSnapshot(r)
		r.step = toLook
	}
	return out
}

// confirm asks for the generation of a range, and waits for it as for a read; for longer if
// patient.
func (l *Fetcher) confirm(ctx context.Context, slotRange uint8, patient bool) error {
	if patient {
		return l.cache.Bus.Confirm(ctx, slotRange)
	}
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, l.cache.ReadTimeout)
	defer cancel()
	err := l.cache.Bus.Confirm(bound, slotRange)
	err = l.cache.Conn.Explain(ctx, err, "a poll", l.cache.Bus.Key(slotRange), began)
	if err != nil && bound.Err() != nil { // else it is the poll's error, which is noted
		l.cache.Conn.Failed(ctx, l.cache.Bus.Key(slotRange), err)
	}
	return err
}
