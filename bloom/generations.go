package bloom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A generation comes and goes in steps:
//
//	begin     Building names it, not ready: nobody adds to it, nobody asks it
//	prepare   its segments are made, empty; then it is ready: each Add adds to it, too. A
//	          rebuild sends each of these commands once. Sent again, a late one could replace a
//	          segment that was lost since, with all its keys, by an empty one. After a failure
//	          the rebuild begins another generation
//	(the rows are read and added)
//	activate  if all its segments are still there, it takes the place of the active one, which is
//	          old then
//	remove    the segments of what is old are deleted, and only then is it forgotten, so that
//	          nothing is left behind
//
// Each step is a compare-and-swap of the whole descriptor. So of two rebuilds, the second to change
// it finds that it is not alone. A generation whose rebuild has died is replaced by the next one.

// begin begins a new generation, and records it. It replaces one that is being built.
func (r *Redis) begin(ctx context.Context, capacity uint64) (g *generation, err error) {
	s, err := shapeFor(capacity, r.rate)
	if err != nil {
		return nil, err
	}
	servers, err := r.serverRuns(ctx)
	if err != nil {
		return nil, err
	}
	deleted, err := r.deleted(ctx)
	if err != nil {
		return nil, err
	}
	err = r.change(ctx, func(to *descriptor) error {
		to.retire(to.Building)
		to.Old = append(to.Old, r.orphans(ctx, to)...)
		g = newGeneration(s, capacity, r.rate)
		g.FalseNegativeID, g.ServerRuns, g.DeletedBefore = to.FalseNegative.id(), servers, deleted
		to.Building = g
		if len(to.generations()) > maxOld { // each of them will be old
			return errors.New("too many generations are waiting to be removed")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	record, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	return g, r.do(ctx, "hset", r.records, g.ID, string(record)).Err()
}

// The hash f.records has each generation by its id, from before its segments are made until they
// are removed, and how many rows were deleted. So the segments of a generation can be removed
// although Redis has lost the descriptor.

// stray returns the generations that are recorded, and that the descriptor does not name. If they
// cannot be read, they wait for the next rebuild.
func (r *Redis) orphans(ctx context.Context, d *descriptor) (orphans []generation) {
	ctx, cancel := context.WithTimeout(ctx, r.longTimeout())
	defer cancel()
	cmd := redis.NewMapStringStringCmd(ctx, "hgetall", r.records)
	if r.home.Send(ctx, []redis.Cmder{cmd}) != nil {
		return nil
	}
	for id, record := range cmd.Val() {
		var g generation
		if json.Unmarshal([]byte(record), &g) != nil || g.ID != id || g.check() != nil || len(d.Old)+len(orphans) >= maxOld-2 {
			continue
		}
		if !slices.ContainsFunc(d.generations(), func(named *generation) bool { return named.ID == id }) {
			orphans = append(orphans, g)
		}
	}
	return orphans
}

// dropBuilding makes a generation that is being built an old one: it is not whole, or was refused.
func (r *Redis) dropBuilding(ctx context.Context, g *generation) error {
	return r.change(ctx, func(to *descriptor) error {
		if to.Building != nil && to.Building.ID == g.ID {
			to.retire(to.Building)
			to.Building = nil
		}
		return nil
	})
}

// dropActive makes the generation that serves an old one: until there is another, all lookups
// answer "maybe". and makes further changes of the descriptor.
func (r *Redis) dropActive(ctx context.Context, g *generation, and func(*descriptor)) error {
	err := r.change(ctx, func(to *descriptor) error {
		if to.Active != nil && to.Active.ID == g.ID {
			to.retire(to.Active)
			to.Active = nil
			and(to)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.bus.DeleteLoader(ctx, generationName) // so that Replicas leave it
}

// doubt ends a generation that may lack keys, before anything else is done.
func (r *Redis) dropSuspect(ctx context.Context, g *generation) error {
	return r.dropActive(ctx, g, func(*descriptor) {})
}

// prepare makes the segments of a generation that was begun. From then on Adds write to it, too.
func (r *Redis) prepare(ctx context.Context, g *generation) error {
	header := g.header()
	err := r.eachSegment(ctx, g, func(ctx context.Context, s uint64, key string) redis.Cmder {
		return conn.Once(redis.NewCmd(ctx, "set", key, header+g.tag(s), "nx"))
	})
	if err != nil {
		return err
	}
	err = r.setReady(ctx, g)
	if errors.Is(err, errReplaced) { // the descriptor does not name these segments any more
		return errors.Join(err, r.unlink(ctx, g))
	}
	return err
}

func (r *Redis) setReady(ctx context.Context, g *generation) error {
	return r.change(ctx, func(to *descriptor) error {
		if to.Building == nil || to.Building.ID != g.ID {
			return errReplaced
		}
		to.Building.Ready = true
		return nil
	})
}

// activate makes lookups ask a generation that is built and whole.
func (r *Redis) activate(ctx context.Context, g *generation) error {
	err := r.change(ctx, func(to *descriptor) error {
		switch {
		case to.Active != nil && to.Active.ID == g.ID: // an earlier try was done, and its reply was lost
			return nil
		case to.Building == nil || to.Building.ID != g.ID || !to.Building.Ready: // or Redis has lost that it was, and nobody adds to it
			return errReplaced
		}
		if err := r.checkReportedKey(ctx, g, to.FalseNegative); err != nil {
			return err
		}
		to.retire(to.Active)
		to.Active, to.Building = to.Building, nil
		to.Active.SampledKeys, to.Active.RebuildTime = g.SampledKeys, time.Since(g.Begun)
		return nil
	})
	if err != nil {
		return err
	}
	return r.bus.DeleteLoader(ctx, generationName) // so that Replicas fetch it
}

// bringsHidden fails with errHiddenSince if the filter was dropped after g was begun, and g lacks
// the key that was reported: its source may be the one that hides rows.
func (r *Redis) checkReportedKey(ctx context.Context, g *generation, last *falseNegative) error {
	if last == nil || last.ID == g.FalseNegativeID {
		return nil
	}
	holds, err := r.holds(ctx, g, []hash{last.Key})
	if err == nil && !holds[0] {
		err = errLacksReported
	}
	return err
}

// swapped is the name by which a new generation is announced.
const generationName = "generation"

// remove deletes the segments of old generations, and then forgets these.
func (r *Redis) remove(ctx context.Context) error {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil {
		return err
	}
	for i := range d.Old {
		if err := r.removeOne(ctx, &d.Old[i]); err != nil {
			return fmt.Errorf("an old generation could not be removed: %w", err)
		}
	}
	return nil
}

func (r *Redis) removeOne(ctx context.Context, old *generation) error {
	if err := r.unlink(ctx, old); err != nil {
		return err
	}
	err := r.change(ctx, func(to *descriptor) error {
		to.Old = slices.DeleteFunc(to.Old, func(g generation) bool { return g.ID == old.ID })
		return nil
	})
	if err != nil {
		return err
	}
	return r.do(ctx, "hdel", r.records, old.ID).Err()
}

// unlink deletes all segments of a generation.
func (r *Redis) unlink(ctx context.Context, g *generation) error {
	return r.eachSegment(ctx, g, func(ctx context.Context, _ uint64, key string) redis.Cmder {
		return redis.NewIntCmd(ctx, "unlink", key)
	})
}

// change edits the descriptor, and does so again if another process has changed it in the meantime.
func (r *Redis) change(ctx context.Context, edit func(*descriptor) error) error {
	for {
		d, err := r.fetchDescriptor(ctx, r.longTimeout())
		if err != nil {
			return err
		}
		to := d.copy()
		if err := edit(&to); err != nil {
			return err
		}
		if done, err := r.swap(ctx, d, to); err != nil || done {
			return err
		}
	}
}

// swap replaces the descriptor from by to. done is false if it is not from any more.
func (r *Redis) swap(ctx context.Context, from *cachedDescriptor, to descriptor) (done bool, err error) {
	raw, err := to.encode()
	if err != nil {
		return false, err
	}
	at := time.Now()
	n, err := r.do(ctx, "eval", swapScript, 1, r.key, from.raw, raw).Int()
	if err != nil {
		return false, err
	}
	var d *cachedDescriptor
	if n == 0 { // the first of two sends may have done it
		d, err = r.fetchDescriptor(ctx, r.longTimeout())
	} else {
		d, err = r.storeDescriptor(raw, at)
	}
	return err == nil && d.raw == raw, err
}

// swapScript changes the descriptor from ARGV[1] to ARGV[2], if it is still that.
const swapScript = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// eachSegment sends a command for each segment of a generation.
func (r *Redis) eachSegment(ctx context.Context, g *generation, make func(ctx context.Context, s uint64, key string) redis.Cmder) error {
	for from := uint64(0); from < g.Segments; from += conn.MaxPipeline {
		bounded, cancel := context.WithTimeout(ctx, max(r.longTimeout(), time.Second))
		var cmds []redis.Cmder
		for s := from; s < min(from+conn.MaxPipeline, g.Segments); s++ {
			cmds = append(cmds, make(bounded, s, segmentKey(r.options.Prefix, r.name, g.ID, s)))
		}
		err := send(bounded, r.conn, cmds)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// Hidden reports a key that the filter has refused although its row exists, as a cacheaside.Loader
// has found (LoaderOptions.AuditEvery). If the filter still refuses the key, it answers "maybe" for
// all keys from then on, in all processes, until it has been rebuilt. Maintain rebuilds it at its
// next check.
//
// A rebuilt filter may refuse the key again, because the source does not list it: a database that
// turns text into numbers, or compares by a collation, finds rows under other keys than their own.
// For 24 hours after the last report, such keys do not end the filter again, unless loaders of this
// process find that the source is wrong (see CheckRebuilt). Then the filter answers "maybe" again,
// and Maintain rebuilds it after a rest that doubles each time, up to a day.
//
// That concerns Replicas, too. If Hidden returns an error, try again.
func (r *Redis) Hidden(ctx context.Context, key string) error {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil || d.Active == nil {
		r.recheckReplica() // it may still refuse keys
		return r.wrapError(err)
	}
	h := hashOf(key)
	if maybe, err := r.lookup(ctx, []hash{h}); err != nil || maybe[0] {
		r.recheckReplica() // it may lack what Redis has
		return err
	}
	r.counts.hidden.Add(1)
	now := time.Now().UTC().Truncate(time.Millisecond)
	if d.FalseNegative.recent(now) {
		why, err := r.wrongSource(ctx, d.Active)
		if why == nil {
			return r.wrapError(errors.Join(err, r.renewFalseNegative(ctx, now)))
		}
		r.warn("its source lacks rows, and it answers \"maybe\" until it was built again: " + why.Error())
	} else {
		r.warn("it has refused a key whose row exists: it answers \"maybe\" until it was built again")
	}
	err = r.dropActive(ctx, d.Active, func(to *descriptor) { to.FalseNegative = to.FalseNegative.next(now, h) })
	r.recheckReplica()
	return r.wrapError(err)
}

// wrong returns why the source of the active generation must be wrong, or nil.
func (r *Redis) wrongSource(ctx context.Context, g *generation) (why, err error) {
	var sampledKeys []string
	for _, key := range g.SampledKeys[:min(len(g.SampledKeys), sampleSize)] {
		sampledKeys = append(sampledKeys, string(key))
	}
	holds := func(ctx context.Context, keys []string) ([]bool, error) { return r.holds(ctx, g, hashesOf(keys)) }
	return r.sourceCheck.run(ctx, g.ID, g.Begun, &r.checkers, sampledKeys, holds)
}

// renewHiding keeps further reports from ending the filter for another day.
func (r *Redis) renewFalseNegative(ctx context.Context, now time.Time) error {
	if d := r.cached.Load(); d == nil || d.FalseNegative == nil || now.Sub(d.FalseNegative.ReportedAt) < renewAfter {
		return nil
	}
	return r.change(ctx, func(to *descriptor) error {
		if to.FalseNegative != nil {
			to.FalseNegative = to.FalseNegative.renewed(now)
		}
		return nil
	})
}

// recheckCopy has a Replica not say "no" by itself until it has looked at the descriptor again.
func (r *Redis) recheckReplica() {
	if replica := r.replica.Load(); replica != nil {
		replica.epoch.Add(1)
		replica.wake()
	}
}

// warn tells of what should never happen.
func (r *Redis) warn(what string) { slog.Warn("cacheaside: bloom: "+what, "filter", r.name) }
