package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/source"
)

// maxRefusals is how many loads of a round may be refused, since an invalidation came between, before the next one's result
// is given out without being stored: under a storm of invalidations a reader must come to an end.
const maxRefusals = 3

// maxCalls is how many calls of the load function one flight makes at once.
const maxCalls = 8

// load loads what it may, and stores it in the place of the leases, which are kept alive meanwhile. A value that is refused is given to nobody,
// for another process may yet store an older one: its round starts again.
func (b *batch[K, V]) load() {
	rounds := at(b.open, toLoad)
	if len(rounds) == 0 {
		return
	}
	stop := b.keepAlive(rounds)
	defer stop()
	rest := b.left()
	defer rest.end()
	chunks := b.chunks(rounds)
	if len(chunks) == 1 {
		b.fill(rounds, stop, rest.goOn)
		return
	}
	atOnce(chunks, b.l.calls, func(chunk []*round[K, V], waiting func()) {
		b.fill(chunk, func() {}, func() {
			waiting()
			rest.goOn()
		})
	})
}

// atOnce calls f for each chunk, so many at once, besides those that have begun to wait for other
// loads, which they say by waiting.
func atOnce[C any](chunks []C, most int, f func(chunk C, waiting func())) {
	places := make(chan struct{}, most)
	var calls sync.WaitGroup
	for _, chunk := range chunks {
		places <- struct{}{}
		leave := sync.OnceFunc(func() { <-places })
		calls.Go(func() {
			defer leave()
			f(chunk, leave)
		})
	}
	calls.Wait()
}

// fill loads the rows of one call, stores them, and gives them out. waiting is called when the load
// begins to wait for others.
func (b *batch[K, V]) fill(all []*round[K, V], stop, waiting func()) {
	returned := false
	defer func() {
		if !returned { // a codec called runtime.Goexit, say
			b.failAll(at(all, toLoad), caught(recover()))
			b.land(all)
		}
	}()
	for rounds := all; len(rounds) > 0 && b.ctx.Err() == nil; {
		entered, busy := b.l.source.Enter(textsOf(rounds), func(i int) bool { return !rounds[i].Result.alone })
		if len(entered) == 0 {
			select {
			case <-busy:
				continue
			case <-b.ctx.Done():
				continue // more ends them
			}
		}
		var now []*round[K, V]
		now, rounds = split(rounds, entered)
		if now = b.mayLoad(now); len(now) > 0 {
			last := len(rounds) == 0
			b.callAndStore(now, func() {
				if last {
					stop()
				}
			}, waiting)
		}
		b.land(all)
	}
	returned = true
}

// split parts rounds into those at these places, which are in order, and the others.
func split[K comparable, V any](rounds []*round[K, V], places []int) (of, others []*round[K, V]) {
	if len(places) == len(rounds) {
		return rounds, nil
	}
	for i, r := range rounds {
		if len(places) > 0 && places[0] == i {
			of, places = append(of, r), places[1:]
		} else {
			others = append(others, r)
		}
	}
	return of, others
}

// textsOf are the texts of the keys of rounds.
func textsOf[K comparable, V any](rounds []*round[K, V]) []string {
	texts := make([]string, len(rounds))
	for i, r := range rounds {
		texts[i] = r.Result.text
	}
	return texts
}

// store puts what was loaded in the place of the leases, or the marker of a failure.
func (b *batch[K, V]) store(rounds []*round[K, V], rows []source.Row) {
	if b.ctx.Err() != nil && slices.ContainsFunc(rows, func(row source.Row) bool { return row.Err != nil }) {
		return // the load was stopped, which is no failure of its own: more ends the rounds
	}
	var fillings []*lease.Filling
	var filled []*round[K, V]
	var tooLarge []*round[K, V]
	for i, r := range rounds {
		b.l.succeeded(&r.Result, rows[i].Err)
		switch row := rows[i]; {
		case row.Err != nil:
			r.Err, r.Result.spared = row.Err, row.NotAttempted
		case r.Result.alone:
			b.giveAlone(r, row)
		default:
			r.Result.value, r.Result.null = valueOf[V](row), row.Null
			f, err := b.l.filling(r, row)
			switch {
			case errors.Is(err, codec.ErrTooLarge):
				b.l.counters.tooLarge.Add(1)
				b.unvalidated(r)
				tooLarge = append(tooLarge, r)
			case err != nil:
				r.Err = err
			default:
				fillings, filled = append(fillings, f), append(filled, r)
			}
		}
	}
	b.failAll(slices.DeleteFunc(slices.Clone(rounds), func(r *round[K, V]) bool { return r.Err == nil }), nil)
	b.giveUp(tooLarge)
	if len(fillings) == 0 {
		return
	}
	b.put(filled, fillings)
	for i, r := range filled {
		b.settleFill(r, fillings[i])
	}
}

// giveUp leaves nothing in Redis for values that are too large to be stored: also not the entry that a refresh has found, which is older.
func (b *batch[K, V]) giveUp(rounds []*round[K, V]) {
	if len(rounds) == 0 {
		return
	}
	if b.refresh {
		for _, err := range b.l.delete(context.WithoutCancel(b.ctx), rounds) {
			b.l.countWrite(err)
		}
		for _, r := range rounds { // after Redis, or a reader would fill memory again from there
			b.l.forget(r.Key, r.Result.text)
		}
	}
	b.release(b.attempts(rounds))
}

func (l *Loader[K, V]) delete(ctx context.Context, rounds []*round[K, V]) []error {
	hashes := make([]uint64, len(rounds))
	for i, r := range rounds {
		hashes[i] = l.keys.Hash(r.Result.text)
	}
	return l.cache.channel.Delete(ctx, names(rounds), hashes)
}

// filling is the entry for a value.
func (l *Loader[K, V]) filling(r *round[K, V], row source.Row) (*lease.Filling, error) {
	e, life, err := l.entry(r.Result.text, r.Result.hashed, r.Result.era, r.Result.value, row)
	return &lease.Filling{Attempt: r.Result.attempt, Entry: e, Life: life}, err
}

// entry is what is stored of a value, in the era in which its load began, and for how long.
func (l *Loader[K, V]) entry(text string, hashed bool, era *local.Era, value V, row source.Row) (e lease.Entry, life time.Duration, err error) {
	ttl := l.ttl(row)
	e = lease.Entry{Null: row.Null, Cost: row.Took, Expiry: time.Now().Add(ttl), Generation: era.Generation, Keyed: hashed}
	if hashed {
		e.Key = text
	}
	if !row.Null {
		var p codec.Payload
		p, err = l.codec.Encode(value)
		e.Codec, e.Compressed, e.Payload = uint8(p.Codec), p.Compressed, p.Bytes
	}
	return e, l.hardLife(ttl, row.Null), err
}

// settleFill decides what follows from an attempt to store a value.
func (b *batch[K, V]) settleFill(r *round[K, V], f *lease.Filling) {
	s := &r.Result
	switch {
	case f.Err != nil && b.refresh: // what was asked for is that it be stored
		s.lost = true
		b.l.countWrite(f.Err)
		r.Err, s.step = redisError(f.Err), over
	case f.Err != nil: // nobody can say whether it is still true; it was when its callers asked
		s.lost = true
		b.l.countWrite(f.Err)
		b.unvalidated(r)
	case f.Stored:
		b.l.remember(r, time.Until(f.Entry.Expiry), f.Entry.Cost, b.refresh)
		s.step = over
	default:
		b.l.counters.refused.Add(1)
		if s.refusals++; s.refusals > maxRefusals {
			b.unvalidated(r) // its load began after its callers had asked
			return
		}
		b.l.again(s)
	}
}

// giveAlone gives out a value that was loaded without a lease. A cache that has no Redis remembers
// it; one whose Redis is out of reach keeps it for a while; none does while its key is on hold.
func (b *batch[K, V]) giveAlone(r *round[K, V], row source.Row) {
	s := &r.Result
	s.value, s.null = valueOf[V](row), row.Null
	switch {
	case s.verdict == checked && row.Null: // as the filter has said
		s.step = over
	case s.verdict == checked:
		b.unvalidated(r)
	case s.bypass:
		b.l.counters.bypassed.Add(1)
		b.unvalidated(r)
	case s.held:
		b.l.counters.held.Add(1)
		b.unvalidated(r)
	case b.l.cache.store != nil:
		b.l.keep(r, row)
		b.unvalidated(r)
	default:
		b.l.remember(r, b.l.ttl(row), row.Took, b.refresh)
		s.step = over
	}
}

// unvalidated ends a round with a value that Redis has not confirmed: it was true when its load began.
func (b *batch[K, V]) unvalidated(r *round[K, V]) {
	s := &r.Result
	b.l.counters.unvalidated.Add(1)
	if b.refresh && b.l.memory != nil {
		b.l.memory.Invalidate(b.l.hash(r.Key), s.stable) // what is remembered is older
	}
	s.unvalidated, s.step = true, over
}

// ttl is how long a loaded value is fresh: its time to live, shortened by the jitter.
func (l *Loader[K, V]) ttl(row source.Row) time.Duration {
	ttl := cmp.Or(row.TTL, l.options.TTL)
	if row.Null {
		ttl = cmp.Or(row.TTL, l.options.NullTTL)
	}
	return max(ttl-time.Duration(max(l.options.Jitter, 0)*rand.Float64()*float64(ttl)), time.Millisecond)
}
