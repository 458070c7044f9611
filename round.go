package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// maxRefusals is how many loads of a round may be refused, since an invalidation came between, before the next one's result
// is given out without being stored: under a storm of invalidations a reader must come to an end.
const maxRefusals = 3

// round is one round of one key: what Get and Refresh have in common once their callers are fixed.
type round[K comparable, V any] struct {
	l          *Loader[K, V]
	key        K
	encoded    string
	stable     uint64
	generation uint64         // as it was before the first look at Redis
	attempt    *lease.Attempt // nil: Redis is not to be asked
	bypass     bool
	refresh    bool

	refusals int
	waited   time.Time // when the first wait for another's load began
	pending  bool      // a load has returned, and its value is not yet stored
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
	r := &round[K, V]{l: l, key: key, encoded: encoded, stable: stableHash(l.name, encoded), bypass: l.bypass.Load()}
	if l.memory != nil {
		r.generation = l.memory.Generation(r.stable)
	}
	if l.cache.store != nil && !r.bypass {
		r.attempt = l.cache.store.Attempt(l.redisKey(encoded), l.cache.options.LeaseTTL)
	}
	return r, nil
}

// end gives up what the round still holds in Redis, on whatever way it ended. A value that could not be stored since its codec
// panicked is a failed load.
func (r *round[K, V]) end(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	var err error
	switch {
	case mutant.Active == mutant.NoRelease:
	case r.pending:
		err = r.attempt.Fail(ctx, r.l.options.ErrorTTL)
	case !r.attempt.Holds() && !r.attempt.Owes():
	case !r.attempt.Holds(): // at most a lease that was asked for in vain, and may yet be given: nobody waits for its end
		r.l.background.Go(func() { r.count(r.attempt.Release(ctx)) })
	default:
		err = r.attempt.Release(ctx)
	}
	r.count(err)
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
		r.count(err)
		return result[V]{}, true, redisError(err)
	case err != nil: // nobody can say whether it is still true; it was when its callers asked
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
	return out, false, nil
}

// fail ends a load without a value: the fleet is told not to try again at once, unless the load was merely stopped.
func (r *round[K, V]) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		r.l.counters.abandoned.Add(1)
		return ended(ctx) // end releases the lease
	}
	r.pending = false
	if mutant.Active != mutant.NoErrorMarker {
		r.count(r.attempt.Fail(context.WithoutCancel(ctx), r.l.options.ErrorTTL))
	}
	return err
}

// withoutRedis goes on when Redis has failed with err: the database answers, once for the process.
func (r *round[K, V]) withoutRedis(ctx context.Context, err error) (result[V], error) {
	if ctx.Err() != nil {
		r.l.counters.abandoned.Add(1)
		return result[V]{}, ended(ctx)
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
			r.l.counters.abandoned.Add(1)
			err = ended(ctx)
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

// remember offers out to the memory tier, under the generation from before it was read. A refresh moves the generation on, for it
// must end what is remembered there; if that has moved already, the value is not remembered.
func (r *round[K, V]) remember(out *result[V], life time.Duration) {
	l := r.l
	life = min(life, l.options.MemoryTTL)
	if l.memory == nil || life <= 0 {
		return
	}
	if mutant.Active == mutant.GenerationLate {
		out.generation = l.memory.Generation(r.stable)
	}
	if r.refresh {
		var ok bool
		if out.generation, ok = l.memory.Advance(r.stable, out.generation); !ok {
			return
		}
	}
	out.remembered = true
	item := local.Item[K, V]{Loader: l.id, Key: r.key, Value: out.value, Null: out.null, Stable: r.stable, Generation: out.generation}
	local.Set(l.memory, l.hash(r.key), item, local.Weigh(r.key)+local.Weigh(out.value), life)
}

// remembered looks into the memory tier.
func (l *Loader[K, V]) remembered(key K) (*local.Item[K, V], bool) {
	if l.memory == nil || l.bypass.Load() {
		return nil, false
	}
	return local.Get[K, V](l.memory, l.hash(key), l.id, key)
}

// current tells whether those who came while a round ran may be given its result: it is what the memory tier holds for them.
func (l *Loader[K, V]) current(out result[V]) bool {
	return out.remembered && !l.bypass.Load() &&
		(l.memory.Generation(out.stable) == out.generation || mutant.Active == mutant.LateGeneration)
}

// forget ends what this process's memory holds of keys.
func (l *Loader[K, V]) forget(keys []K) {
	if l.memory == nil {
		return
	}
	for _, key := range keys {
		if encoded, err := l.encodeKey(key); err == nil {
			l.memory.Invalidate(l.hash(key), stableHash(l.name, encoded))
		}
	}
}

// hash is of this process and loader only.
func (l *Loader[K, V]) hash(key K) uint64 {
	if mutant.Active == mutant.MemoryKey {
		return 1
	}
	return maphash.Comparable(l.seed, key)
}

// life is how long a loaded value is stored: its time to live, shortened by the jitter.
func (l *Loader[K, V]) life(v loaded[V]) time.Duration {
	ttl := cmp.Or(v.ttl, l.options.TTL)
	if v.null {
		ttl = cmp.Or(v.ttl, l.options.NullTTL)
	}
	return max(ttl-time.Duration(max(l.options.Jitter, 0)*rand.Float64()*float64(ttl)), time.Millisecond)
}

// keepAlive renews the round's lease at each third of its life until stop is called. A renewal that comes too late is harmless: it
// compares the token. If the lease is lost the load goes on, and its result will be refused.
func (r *round[K, V]) keepAlive(ctx context.Context) (stop func()) {
	if mutant.Active == mutant.NoRenewal {
		return func() {}
	}
	l := r.l
	ctx = context.WithoutCancel(ctx)
	lease := r.attempt.Renewal()
	var mu sync.Mutex
	stopped := false
	var timer *time.Timer
	renew := func() {
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		l.background.Add(1) // before the round ends, so before Close waits
		mu.Unlock()
		defer l.background.Done()
		held, err := lease.Renew(ctx)
		r.count(err)
		mu.Lock()
		defer mu.Unlock()
		if !stopped && (held || err != nil) {
			timer.Reset(l.cache.options.LeaseTTL / 3)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(l.cache.options.LeaseTTL/3, renew)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// wait lets some time pass while another process loads the key.
func (r *round[K, V]) wait(ctx context.Context) error {
	now := time.Now()
	if r.waited.IsZero() {
		r.waited = now
		r.l.counters.waits.Add(1)
	}
	waited := now.Sub(r.waited)
	if waited > 2*r.l.options.LoadTimeout {
		return ErrLoadTimeout
	}
	timer := time.NewTimer(r.l.loadTime.pause(waited))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		r.l.counters.abandoned.Add(1)
		return ended(ctx)
	}
}

// count makes an error of Redis seen that no caller is told of.
func (r *round[K, V]) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		r.l.counters.redisErrors.Add(1)
	}
}

// loadTime is about how long the loads of a loader take.
type loadTime struct{ nanos atomic.Int64 }

// observe takes one load into account: an exponential moving average, which needs no exact sum, so that a lost update is no harm.
func (t *loadTime) observe(took time.Duration) {
	old := t.nanos.Load()
	if old == 0 {
		old = int64(took)
	}
	t.nanos.Store(old + (int64(took)-old)/8)
}

// pause is how long to wait before looking again for the result of another's load, after having waited for so long: a tenth of what
// such a load takes, or has taken, so that a waiter is late by about that, and asks some ten times. It does not know when the
// load began. With a quarter of jitter, so that waiters do not ask in step.
func (t *loadTime) pause(waited time.Duration) time.Duration {
	const unknown = 50 * time.Millisecond
	expected := max(time.Duration(cmp.Or(t.nanos.Load(), int64(unknown))), waited)
	gap := min(max(expected/10, time.Millisecond), 100*time.Millisecond)
	return gap*3/4 + rand.N(gap/2)
}
