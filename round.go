package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// maxRefusals is how many loads of a round may be refused, since an invalidation came between, before the next one's result
// is given out without being stored: under a storm of invalidations a reader must come to an end.
const maxRefusals = 3

// round is one round of one key: what Get and Refresh have in common once their callers are fixed.
type round[K comparable, V any] struct {
	l          *Loader[K, V]
	key        K
	stable     uint64
	generation uint64         // as it was before the first look at Redis
	attempt    *lease.Attempt // nil: Redis is not to be asked
	bypass     bool
	refresh    bool

	refusals int
	waited   time.Time // when the first wait for another's load began
	pending  bool      // a load has returned, and its value is not yet stored
	lost     bool      // Redis was lost while it was being stored
}

// result is what a round gives its callers.
type result[V any] struct {
	value              V
	null               bool
	remembered         bool // it was put into the memory tier
	unvalidated        bool // Redis has not confirmed it
	stable, generation uint64
}

// begin fixes what must be known before the first look at Redis.
func (l *Loader[K, V]) begin(key K) (*round[K, V], error) {
	encoded, err := l.encodeKey(key)
	if err != nil {
		return nil, err
	}
	r := &round[K, V]{l: l, key: key, stable: stableHash(l.name, encoded), bypass: l.bypass.Load()}
	r.takeGeneration()
	if l.cache.store != nil && !r.bypass {
		r.attempt = l.cache.store.Attempt(l.redisKey(encoded), l.cache.options.LeaseTTL)
	}
	return r, nil
}

// takeGeneration is done before a round's first look at Redis, and again when it starts again.
func (r *round[K, V]) takeGeneration() {
	if r.l.memory != nil {
		r.generation = r.l.memory.Generation(r.stable)
	}
}

// end gives up what the round still holds in Redis, on whatever way it ended. A value that could not be stored since its codec
// panicked is a failed load.
func (r *round[K, V]) end(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	switch {
	case !r.attempt.Holds() && !r.attempt.Owes(), mutant.Active == mutant.NoRelease: // a hit, or a load that has ended as it should
	case !r.attempt.Holds(), r.lost: // a lease that was asked for in vain may yet be given; or Redis does not answer: nobody waits
		r.l.background.Go(func() { r.count(r.attempt.Release(ctx)) })
	case r.pending:
		r.count(r.attempt.Fail(ctx, r.l.options.ErrorTTL))
	default:
		r.count(r.attempt.Release(ctx))
	}
}

// fill loads, keeping the lease alive, and stores the value in its place. It is not done if the value was refused: then it is given to
// nobody, for another process may yet store an older one, and the round starts again.
func (r *round[K, V]) fill(ctx context.Context) (out result[V], done bool, err error) {
	l := r.l
	stop := r.keepAlive(ctx)
	value, err := l.call(ctx, r.key)
	stop()
	if err != nil {
		return out, true, r.fail(ctx, err)
	}
	r.pending = true // until it is stored
	entry := lease.Entry{Null: value.null, Cost: value.took}
	if !value.null {
		if entry.Codec, entry.Payload, err = encode(value.value); err != nil {
			return out, true, r.fail(ctx, err)
		}
	}
	life := l.life(value)
	entry.Expiry = time.Now().Add(life)
	stored, err := r.attempt.Fill(context.WithoutCancel(ctx), entry, life)
	r.pending = false
	out = r.result(value)
	switch {
	case err != nil && r.refresh: // what was asked for is that it be stored
		r.lost = true
		r.count(err)
		return result[V]{}, true, redisError(err)
	case err != nil: // nobody can say whether it is still true; it was when its callers asked
		r.lost = true
		r.count(err)
		return r.unvalidated(out), true, nil
	case stored:
		r.remember(&out, life)
		return out, true, nil
	}
	l.counters.refused.Add(1)
	if mutant.Active == mutant.ReturnRefused {
		return out, true, nil
	}
	if r.refusals++; r.refusals > maxRefusals {
		return r.unvalidated(out), true, nil // its load began after its callers had asked
	}
	r.takeGeneration()
	return out, false, nil
}

// fail ends a load without a value: the fleet is told not to try again at once, unless the load was merely stopped.
func (r *round[K, V]) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return r.stopped(ctx) // end releases the lease
	}
	r.pending = false
	if mutant.Active != mutant.NoErrorMarker {
		r.count(r.attempt.Fail(context.WithoutCancel(ctx), r.l.options.ErrorTTL))
	}
	return err
}

// stopped counts a round that its callers have left.
func (r *round[K, V]) stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		r.l.counters.abandoned.Add(1)
	}
	return ended(ctx)
}

// withoutRedis goes on when Redis has failed with err: the database answers, once for the process.
func (r *round[K, V]) withoutRedis(ctx context.Context, err error) (result[V], error) {
	if ctx.Err() != nil {
		return result[V]{}, r.stopped(ctx)
	}
	r.count(err)
	return r.loadAlone(ctx)
}

// loadAlone loads without a lease. Only a cache that has no Redis remembers the value: otherwise nothing would tell that it has
// changed.
func (r *round[K, V]) loadAlone(ctx context.Context) (result[V], error) {
	value, err := r.l.call(ctx, r.key)
	if err != nil {
		if ctx.Err() != nil {
			err = r.stopped(ctx)
		}
		return result[V]{}, err
	}
	out := r.result(value)
	switch {
	case r.bypass:
		r.l.counters.bypassed.Add(1)
		out = r.unvalidated(out)
	case r.l.cache.store != nil:
		out = r.unvalidated(out)
	default:
		r.remember(&out, r.l.life(value))
	}
	return out, nil
}

// unvalidated marks a result that is given out although Redis has not confirmed it: it was true when its load began.
func (r *round[K, V]) unvalidated(out result[V]) result[V] {
	r.l.counters.unvalidated.Add(1)
	if r.refresh && r.l.memory != nil {
		r.l.memory.Invalidate(r.l.hash(r.key), r.stable) // what is remembered is older
	}
	out.unvalidated = true
	return out
}

// decode turns an entry into a result, and remembers it for what is left of its life.
func (r *round[K, V]) decode(e lease.Entry) (out result[V], ok bool) {
	value := loaded[V]{null: e.Null}
	if !e.Null {
		var err error
		if value.value, err = decode[V](e.Codec, e.Payload); err != nil {
			return out, false
		}
	} else {
		r.l.counters.nullHits.Add(1)
	}
	r.l.counters.redisHits.Add(1)
	out = r.result(value)
	life := time.Until(e.Expiry)
	if mutant.Active == mutant.MemoryLife {
		life = r.l.options.TTL
	}
	r.remember(&out, life)
	return out, true
}

func (r *round[K, V]) result(v loaded[V]) result[V] {
	return result[V]{value: v.value, null: v.null, stable: r.stable, generation: r.generation}
}

// life is how long a loaded value is stored: its time to live, shortened by the jitter.
func (l *Loader[K, V]) life(v loaded[V]) time.Duration {
	ttl := cmp.Or(v.ttl, l.options.TTL)
	if v.null {
		ttl = cmp.Or(v.ttl, l.options.NullTTL)
	}
	return max(ttl-time.Duration(max(l.options.Jitter, 0)*rand.Float64()*float64(ttl)), time.Millisecond)
}

// count makes an error of Redis seen that no caller is told of.
func (r *round[K, V]) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		r.l.counters.redisErrors.Add(1)
	}
}
