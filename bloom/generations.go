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
func (f *Redis) begin(ctx context.Context, capacity uint64) (g *generation, err error) {
	s, err := shapeFor(capacity, f.rate)
	if err != nil {
		return nil, err
	}
	servers, err := f.servers(ctx)
	if err != nil {
		return nil, err
	}
	deleted, err := f.deleted(ctx)
	if err != nil {
		return nil, err
	}
	err = f.change(ctx, func(to *descriptor) error {
		to.retire(to.Building)
		to.Old = append(to.Old, f.stray(ctx, to)...)
		g = newGeneration(s, capacity, f.rate)
		g.Hidden, g.Servers, g.Deleted = to.Hiding.id(), servers, deleted
		to.Building = g
		if len(to.all()) > maxOld { // each of them will be old
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
	return g, f.do(ctx, "hset", f.records, g.ID, string(record)).Err()
}

// The hash f.records has each generation by its id, from before its segments are made until they
// are removed, and how many rows were deleted. So the segments of a generation can be removed
// although Redis has lost the descriptor.

// stray returns the generations that are recorded, and that the descriptor does not name. If they
// cannot be read, they wait for the next rebuild.
func (f *Redis) stray(ctx context.Context, d *descriptor) (stray []generation) {
	ctx, cancel := context.WithTimeout(ctx, f.allTries())
	defer cancel()
	cmd := redis.NewMapStringStringCmd(ctx, "hgetall", f.records)
	if f.home.Send(ctx, []redis.Cmder{cmd}) != nil {
		return nil
	}
	for id, record := range cmd.Val() {
		var g generation
		if json.Unmarshal([]byte(record), &g) != nil || g.ID != id || g.check() != nil || len(d.Old)+len(stray) >= maxOld-2 {
			continue
		}
		if !slices.ContainsFunc(d.all(), func(named *generation) bool { return named.ID == id }) {
			stray = append(stray, g)
		}
	}
	return stray
}

// dropBuilding makes a generation that is being built an old one: it is not whole, or was refused.
func (f *Redis) dropBuilding(ctx context.Context, g *generation) error {
	return f.change(ctx, func(to *descriptor) error {
		if to.Building != nil && to.Building.ID == g.ID {
			to.retire(to.Building)
			to.Building = nil
		}
		return nil
	})
}

// dropActive makes the generation that serves an old one: until there is another, all lookups
// answer "maybe". and makes further changes of the descriptor.
func (f *Redis) dropActive(ctx context.Context, g *generation, and func(*descriptor)) error {
	err := f.change(ctx, func(to *descriptor) error {
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
	return f.bus.DeleteLoader(ctx, swapped) // so that Replicas leave it
}

// doubt ends a generation that may lack keys, before anything else is done.
func (f *Redis) doubt(ctx context.Context, g *generation) error {
	return f.dropActive(ctx, g, func(*descriptor) {})
}

// prepare makes the segments of a generation that was begun. From then on Adds write to it, too.
func (f *Redis) prepare(ctx context.Context, g *generation) error {
	header := g.header()
	err := f.eachSegment(ctx, g, func(ctx context.Context, s uint64, key string) redis.Cmder {
		return conn.Once(redis.NewCmd(ctx, "set", key, header+g.tag(s), "nx"))
	})
	if err != nil {
		return err
	}
	err = f.setReady(ctx, g)
	if errors.Is(err, errReplaced) { // the descriptor does not name these segments any more
		return errors.Join(err, f.unlink(ctx, g))
	}
	return err
}

func (f *Redis) setReady(ctx context.Context, g *generation) error {
	return f.change(ctx, func(to *descriptor) error {
		if to.Building == nil || to.Building.ID != g.ID {
			return errReplaced
		}
		to.Building.Ready = true
		return nil
	})
}

// activate makes lookups ask a generation that is built and whole.
func (f *Redis) activate(ctx context.Context, g *generation) error {
	err := f.change(ctx, func(to *descriptor) error {
		switch {
		case to.Active != nil && to.Active.ID == g.ID: // an earlier try was done, and its reply was lost
			return nil
		case to.Building == nil || to.Building.ID != g.ID || !to.Building.Ready: // or Redis has lost that it was, and nobody adds to it
			return errReplaced
		}
		if err := f.bringsHidden(ctx, g, to.Hiding); err != nil {
			return err
		}
		to.retire(to.Active)
		to.Active, to.Building = to.Building, nil
		to.Active.Listed, to.Active.Took = g.Listed, time.Since(g.Begun)
		return nil
	})
	if err != nil {
		return err
	}
	return f.bus.DeleteLoader(ctx, swapped) // so that Replicas fetch it
}

// bringsHidden fails with errHiddenSince if the filter was dropped after g was begun, and g lacks
// the key that was reported: its source may be the one that hides rows.
func (f *Redis) bringsHidden(ctx context.Context, g *generation, last *hiding) error {
	if last == nil || last.ID == g.Hidden {
		return nil
	}
	holds, err := f.holds(ctx, g, []hash{last.Key})
	if err == nil && !holds[0] {
		err = errHiddenSince
	}
	return err
}

// swapped is the name by which a new generation is announced.
const swapped = "generation"

// remove deletes the segments of old generations, and then forgets these.
func (f *Redis) remove(ctx context.Context) error {
	d, err := f.fetch(ctx, f.allTries())
	if err != nil {
		return err
	}
	for i := range d.Old {
		if err := f.removeOne(ctx, &d.Old[i]); err != nil {
			return fmt.Errorf("an old generation could not be removed: %w", err)
		}
	}
	return nil
}

func (f *Redis) removeOne(ctx context.Context, old *generation) error {
	if err := f.unlink(ctx, old); err != nil {
		return err
	}
	err := f.change(ctx, func(to *descriptor) error {
		to.Old = slices.DeleteFunc(to.Old, func(g generation) bool { return g.ID == old.ID })
		return nil
	})
	if err != nil {
		return err
	}
	return f.do(ctx, "hdel", f.records, old.ID).Err()
}

// unlink deletes all segments of a generation.
func (f *Redis) unlink(ctx context.Context, g *generation) error {
	return f.eachSegment(ctx, g, func(ctx context.Context, _ uint64, key string) redis.Cmder {
		return redis.NewIntCmd(ctx, "unlink", key)
	})
}

// change edits the descriptor, and does so again if another process has changed it in the meantime.
func (f *Redis) change(ctx context.Context, edit func(*descriptor) error) error {
	for {
		d, err := f.fetch(ctx, f.allTries())
		if err != nil {
			return err
		}
		to := d.copy()
		if err := edit(&to); err != nil {
			return err
		}
		if done, err := f.swap(ctx, d, to); err != nil || done {
			return err
		}
	}
}

// swap replaces the descriptor from by to. done is false if it is not from any more.
func (f *Redis) swap(ctx context.Context, from *known, to descriptor) (done bool, err error) {
	raw, err := to.encode()
	if err != nil {
		return false, err
	}
	at := time.Now()
	n, err := f.do(ctx, "eval", swapScript, 1, f.key, from.raw, raw).Int()
	if err != nil {
		return false, err
	}
	var d *known
	if n == 0 { // the first of two sends may have done it
		d, err = f.fetch(ctx, f.allTries())
	} else {
		d, err = f.learn(raw, at)
	}
	return err == nil && d.raw == raw, err
}

// swapScript changes the descriptor from ARGV[1] to ARGV[2], if it is still that.
const swapScript = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// eachSegment sends a command for each segment of a generation.
func (f *Redis) eachSegment(ctx context.Context, g *generation, make func(ctx context.Context, s uint64, key string) redis.Cmder) error {
	for from := uint64(0); from < g.Segments; from += conn.MaxPipeline {
		bounded, cancel := context.WithTimeout(ctx, max(f.allTries(), time.Second))
		var cmds []redis.Cmder
		for s := from; s < min(from+conn.MaxPipeline, g.Segments); s++ {
			cmds = append(cmds, make(bounded, s, segmentKey(f.options.Prefix, f.name, g.ID, s)))
		}
		err := send(bounded, f.conn, cmds)
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
func (f *Redis) Hidden(ctx context.Context, key string) error {
	d, err := f.fetch(ctx, f.allTries())
	if err != nil || d.Active == nil {
		f.recheckCopy() // it may still refuse keys
		return f.failed(err)
	}
	h := hashOf(key)
	if maybe, err := f.lookup(ctx, []hash{h}); err != nil || maybe[0] {
		f.recheckCopy() // it may lack what Redis has
		return err
	}
	f.counts.hidden.Add(1)
	now := time.Now().UTC().Truncate(time.Millisecond)
	if d.Hiding.recent(now) {
		why, err := f.wrong(ctx, d.Active)
		if why == nil {
			return f.failed(errors.Join(err, f.renewHiding(ctx, now)))
		}
		f.warn("its source lacks rows, and it answers \"maybe\" until it was built again: " + why.Error())
	} else {
		f.warn("it has refused a key whose row exists: it answers \"maybe\" until it was built again")
	}
	err = f.dropActive(ctx, d.Active, func(to *descriptor) { to.Hiding = to.Hiding.again(now, h) })
	f.recheckCopy()
	return f.failed(err)
}

// wrong returns why the source of the active generation must be wrong, or nil.
func (f *Redis) wrong(ctx context.Context, g *generation) (why, err error) {
	var listed []string
	for _, key := range g.Listed[:min(len(g.Listed), sampleSize)] {
		listed = append(listed, string(key))
	}
	holds := func(ctx context.Context, keys []string) ([]bool, error) { return f.holds(ctx, g, hashesOf(keys)) }
	return f.judged.wrong(ctx, g.ID, g.Begun, &f.checkers, listed, holds)
}

// renewHiding keeps further reports from ending the filter for another day.
func (f *Redis) renewHiding(ctx context.Context, now time.Time) error {
	if d := f.known.Load(); d == nil || d.Hiding == nil || now.Sub(d.Hiding.At) < renewAfter {
		return nil
	}
	return f.change(ctx, func(to *descriptor) error {
		if to.Hiding != nil {
			to.Hiding = to.Hiding.renewed(now)
		}
		return nil
	})
}

// recheckCopy has a Replica not say "no" by itself until it has looked at the descriptor again.
func (f *Redis) recheckCopy() {
	if r := f.copy.Load(); r != nil {
		r.epoch.Add(1)
		r.look()
	}
}

// warn tells of what should never happen.
func (f *Redis) warn(what string) { slog.Warn("cacheaside: bloom: "+what, "filter", f.name) }
