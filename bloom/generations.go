package bloom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/limitedlog"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// A generation passes through these steps:
//
//	begin     Building names the generation. It is not ready: no process adds keys to it or
//	          looks up keys in it.
//	prepare   Its segments are created empty. Then it is ready, and each Add also writes to
//	          it. A rebuild sends each of these commands only once. If a command were sent
//	          again, a late one could create an empty segment where one with keys was lost
//	          since, and hide the loss. After a failure the rebuild begins another generation.
//	(the rows are read and added)
//	activate  If all its segments still exist, it replaces the active generation, which
//	          becomes old.
//	remove    The segments of the old generation are deleted. Only then is its name removed,
//	          so that no segment is left behind.
//
// Each step is a compare-and-swap of the whole descriptor. So if two rebuilds run, the second one
// to change it notices the other. The next rebuild replaces a generation whose rebuild has died.

// begin begins a new generation, and records it. It replaces a generation that is being built.
func (r *Redis) begin(ctx context.Context, capacity uint64) (g *generation, err error) {
	s, err := bitmap.ShapeFor(capacity, r.rate)
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
	err = r.change(ctx, func(changed *descriptor) error {
		if err := r.replaceable(changed); err != nil {
			return err
		}
		changed.retire(changed.Building)
		changed.Old = append(changed.Old, r.orphans(ctx, changed)...)
		g = newGeneration(s, capacity, r.rate)
		g.ServerRuns, g.DeletedBefore = servers, deleted
		changed.Building = g
		if len(changed.generations()) > maxOld { // each of them becomes old
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

// The hash r.records contains each generation by its ID, from before its segments are created
// until they are removed. It also counts deleted rows. With these records, the segments of a
// generation can be removed even if Redis has lost the descriptor.

// orphans returns the recorded generations that the descriptor does not name. It returns none if
// the records cannot be read; the next rebuild tries again.
func (r *Redis) orphans(ctx context.Context, d *descriptor) (orphans []generation) {
	ctx, cancel := context.WithTimeout(ctx, r.longTimeout())
	defer cancel()
	cmd := redis.NewMapStringStringCmd(ctx, "hgetall", r.records)
	if r.home.Send(ctx, []redis.Cmder{cmd}) != nil {
		return nil
	}
	for id, record := range cmd.Val() {
		var g generation
		if json.Unmarshal([]byte(record), &g) != nil || g.ID != id || g.check() != nil ||
			len(d.Old)+len(orphans) >= maxOld-2 {
			continue
		}
		if !slices.ContainsFunc(d.generations(), func(named *generation) bool { return named.ID == id }) {
			orphans = append(orphans, g)
		}
	}
	return orphans
}

// dropBuilding retires a generation that is being built, because it is incomplete or was rejected.
func (r *Redis) dropBuilding(ctx context.Context, g *generation) error {
	return r.change(ctx, func(changed *descriptor) error {
		if changed.Building != nil && changed.Building.ID == g.ID {
			changed.retire(changed.Building)
			changed.Building = nil
		}
		return nil
	})
}

// dropActive retires the active generation. All lookups return "maybe" until another one is
// active. The function also makes further changes to the descriptor.
func (r *Redis) dropActive(ctx context.Context, g *generation, also func(*descriptor)) error {
	err := r.change(ctx, func(changed *descriptor) error {
		if changed.Active != nil && changed.Active.ID == g.ID {
			changed.retire(changed.Active)
			changed.Active = nil
			also(changed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.bus.DeleteLoader(ctx, generationName) // so that Replicas discard their copy
}

// dropSuspect retires an active generation that may lack keys, without waiting for a rebuild.
func (r *Redis) dropSuspect(ctx context.Context, g *generation) error {
	return r.dropActive(ctx, g, func(*descriptor) {})
}

// prepare creates the segments of a generation that was begun. After that, Adds also write to it.
func (r *Redis) prepare(ctx context.Context, g *generation) error {
	header := g.header()
	err := r.eachSegment(ctx, g, func(ctx context.Context, s uint64, key string) redis.Cmder {
		return conn.Once(redis.NewCmd(ctx, "set", key, header+g.tag(s), "nx"))
	})
	if err != nil {
		return err
	}
	err = r.setReady(ctx, g)
	if errors.Is(err, errReplaced) { // the descriptor no longer names these segments
		return errors.Join(err, r.unlink(ctx, g))
	}
	return err
}

func (r *Redis) setReady(ctx context.Context, g *generation) error {
	return r.change(ctx, func(changed *descriptor) error {
		if changed.Building == nil || changed.Building.ID != g.ID {
			return errReplaced
		}
		changed.Building.Ready = true
		return nil
	})
}

// activate makes a generation serve lookups. It must be complete.
func (r *Redis) activate(ctx context.Context, g *generation) error {
	err := r.change(ctx, func(changed *descriptor) error {
		switch {
		case changed.Active != nil && changed.Active.ID == g.ID: // an earlier attempt succeeded, and its reply was lost
			return nil
		case changed.Building == nil || changed.Building.ID != g.ID || !changed.Building.Ready:
			// If it is not ready, Redis has lost that change, and no process adds keys to it.
			return errReplaced
		}
		if err := r.replaceable(changed); err != nil {
			return err
		}
		r.own(changed.Building, changed.Active)
		changed.retire(changed.Active)
		changed.Active, changed.Building = changed.Building, nil
		changed.Active.RebuildTime = time.Since(g.Begun)
		return nil
	})
	if err != nil {
		return err
	}
	return r.bus.DeleteLoader(ctx, generationName) // so that Replicas fetch it
}

// generationName is the name under which a change of the active generation is announced.
const generationName = "generation"

// remove deletes the segments of old generations, and then removes these from the descriptor.
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
	err := r.change(ctx, func(changed *descriptor) error {
		changed.Old = slices.DeleteFunc(changed.Old, func(g generation) bool { return g.ID == old.ID })
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

// change edits the descriptor. It repeats the edit if another process has changed the descriptor
// in the meantime.
func (r *Redis) change(ctx context.Context, edit func(*descriptor) error) error {
	for {
		d, err := r.fetchDescriptor(ctx, r.longTimeout())
		if err != nil {
			return err
		}
		changed := d.copy()
		if err := edit(&changed); err != nil {
			return err
		}
		if done, err := r.swap(ctx, d, changed); err != nil || done {
			return err
		}
	}
}

// swap replaces the descriptor from with changed. done is false if the descriptor is no longer
// from.
func (r *Redis) swap(ctx context.Context, from *cachedDescriptor, changed descriptor) (done bool, err error) {
	raw, err := changed.encode()
	if err != nil {
		return false, err
	}
	sentAt := time.Now()
	n, err := r.do(ctx, "eval", swapScript, 1, r.key, from.raw, raw).Int()
	if err != nil {
		return false, err
	}
	var d *cachedDescriptor
	if n == 0 { // the client may have sent it twice, and the first may have succeeded
		d, err = r.fetchDescriptor(ctx, r.longTimeout())
	} else {
		d, err = r.storeDescriptor(raw, sentAt)
	}
	return err == nil && d.raw == raw, err
}

// swapScript replaces the descriptor ARGV[1] with ARGV[2], if it is still ARGV[1].
const swapScript = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// eachSegment sends a command for each segment of a generation.
func (r *Redis) eachSegment(
	ctx context.Context, g *generation, make func(ctx context.Context, s uint64, key string) redis.Cmder,
) error {
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

// recheckReplica stops the Replica from refusing keys on its own until it has read the descriptor
// again.
func (r *Redis) recheckReplica() {
	if replica := r.replica.Load(); replica != nil {
		replica.epoch.Add(1)
		replica.wake()
	}
}

// warn logs a condition that should never occur.
func (r *Redis) warn(message string) {
	limitedlog.Guarded(r.options.Logger).Warn("cacheaside: bloom: "+message, "filter", r.name)
}
