package promises

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Two processes read a few keys at random, and write them under holds. All reads must be consistent
// with a register for each key, including values that were loaded under a hold and reads during a
// write: after the commit, no read returns the previous value.

func init() { testenv.RegisterChild("strict-history", strictHistoryChild) }

// strictLife is the TTL of a hold without renewal: usually longer than the pauses of a busy
// process. Keys of abandoned holds stay on hold that long, which happens only in long runs.
var strictLife = 20 * time.Second

func init() {
	if accepting {
		strictLife = 2 * time.Second
	}
}

func strictHistoryChild() {
	ctx := context.Background()
	options := strict
	options.LeaseTTL = strictLife
	p := startHistory(options)
	l, err := cacheaside.NewLoader(p.cache, "row", p.load, &historyLoads)
	if err != nil {
		panic(err)
	}
	p.run(l, func(r *rand.Rand, e event, n int) {
		switch kind := r.IntN(100); {
		case kind < 10:
			e.Write, e.Value = true, fmt.Sprint(e.Goroutine, "-", n)
			if paused, written := p.strictWrite(ctx, r, l, e); written {
				e.Return = time.Now().UnixNano()
				p.report.add(e)
				if paused {
					p.report.pause()
				}
			}
		case kind < 12: // a relay repeats an old invalidation
			if err := p.cache.InvalidateKeys(ctx, l.Key(e.Key)); err != nil {
				panic(err)
			}
		case kind < 14:
			p.rdb.Del(ctx, redisKey(e.Key))
		case kind < 20:
			p.report.add(strictRead(ctx, r, readerOf(l).RefreshMany, e)...)
		default:
			p.report.add(strictRead(ctx, r, func(ctx context.Context, keys []int, got func(int, *fetch.Round),
				failed func(int, error)) {
				readerOf(l).GetMany(ctx, fetch.Plain, keys, got, failed)
			}, e)...)
		}
	})
}

// strictWrite writes a row as a strict writer does.
func (p *historyProcess) strictWrite(
	ctx context.Context, r *rand.Rand, l *cacheaside.Loader[int, string], e event,
) (paused, written bool) {
	h, err := p.cache.Hold(ctx, l.Key(e.Key))
	if err != nil {
		panic(err)
	}
	defer func() {
		for h.Invalidate(ctx) != nil {
		}
	}()
	checked := time.Now()
	if h.Check(ctx) != nil || r.IntN(10) == 0 { // rolled back
		return false, false
	}
	// So that others come in between.
	linger := func() { time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond) }
	linger()
	p.write(ctx, e)
	paused = time.Since(checked) > strictLife
	linger()
	switch kind := r.IntN(1000); {
	case kind < 3 && accepting:
		h.Abandon()
	case kind < 700:
		if _, err := writeside.Of(l).StoreHeld(ctx, h, e.Key, e.Value); err != nil {
			panic(err)
		}
	}
	return paused, true
}

// strictRead reads one key or a batch.
func strictRead(
	ctx context.Context, r *rand.Rand, read func(ctx context.Context, keys []int, got func(int, *fetch.Round),
		failed func(int, error)), e event,
) (seen []event) {
	keys := []int{e.Key}
	if r.IntN(4) == 0 {
		keys = r.Perm(historyKeys)[:2]
	}
	values := make([]string, len(keys))
	read(ctx, keys, func(i int, got *fetch.Round) { values[i] = rows.Value[string](got.Value) },
		func(_ int, err error) { panic(err) })
	e.Return = time.Now().UnixNano()
	for i, key := range keys {
		e.Key, e.Value = key, values[i]
		seen = append(seen, e)
	}
	return seen
}

func TestStrictHistoryIsLinearizable(t *testing.T) {
	length, seeds := 2*time.Second, 1
	if accepting {
		length, seeds = 20*time.Second, 5
	}
	for seed := range seeds {
		// A machine that stands still is not a failure.
		for length := length; !strictHistory(t, length, seed); length *= 2 {
			if length > testenv.Hang {
				t.Fatalf("seed %d: too few operations for a verdict", seed)
			}
		}
	}
}

// enoughOperations overlap in many ways. With half as many, next to other programs, this test once
// passed although a guard was removed.
const enoughOperations = 2000

// strictHistory returns false if no verdict is possible, because a process paused for too long or
// there were too few operations.
func strictHistory(t *testing.T, length time.Duration, seed int) bool {
	t.Helper()
	cache := testenv.SharedRedis(t)
	inUse(t, backend{admin: cache.Client(t)}, time.Hour)
	history, sum := watchHistory(t, "strict-history", cache, 2, length, seed)
	stats, writes := sum.Stats, 0
	for _, e := range sum.Events {
		if e.Write {
			writes++
		}
	}
	began := time.Now()
	result := porcupine.CheckOperationsTimeout(register, history, time.Minute)
	t.Logf("seed %d: %d operations, %d of them writes, %d stored by them; %d loads, %d held, %d refused, %d hits, %d "+
		"holds lost; checked in %v: %s",
		seed, len(history), writes, stats.StoredHeld, stats.Loads, stats.Held, stats.Refused, stats.RedisHits,
		stats.HoldsLost, time.Since(began).Round(time.Millisecond), result)
	if sum.Paused > 0 {
		t.Logf("%d writes paused for longer than their holds", sum.Paused)
		return false
	}
	if result != porcupine.Ok {
		t.Errorf("seed %d: %s", seed, result)
	}
	return t.Failed() || len(history) >= enoughOperations && writes > 0 && stats.StoredHeld > 0 && stats.Held > 0 &&
		stats.RedisHits > 0
}
