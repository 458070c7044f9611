package bloom

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// Add adds a key. Once Add has returned nil, each lookup that begins later with a Redis filter
// finds the key, in every process. Each lookup with a Replica finds it normally within
// milliseconds, and always after Options.MaxStaleness. If Add returns an error, the caller
// retries: adding a key again does no harm.
//
// For a row that is not yet committed, Add is not enough: see Inserting.
func (r *Redis) Add(ctx context.Context, key string) error { return r.AddMany(ctx, []string{key}) }

// AddMany is Add for many keys, in few round trips.
func (r *Redis) AddMany(ctx context.Context, keys []string) error {
	_, err := r.add(ctx, keys)
	return err
}

// Inserting adds keys whose rows are being inserted. The caller calls Inserting before the
// transaction commits, and the function committed after the commit:
//
//	committed, err := filter.Inserting(ctx, keys)
//	if err != nil {
//		return err // the transaction must not commit
//	}
//	if err := tx.Commit(); err != nil {
//		return err
//	}
//	return committed(context.WithoutCancel(ctx))
//
// After committed has returned nil, lookups find the keys as they do after Add, even if the
// filter was rebuilt in the meantime: a Rebuild that read the table between the two calls has not
// seen the rows. committed may be called again, after an error or not, and by several goroutines.
// If the transaction is rolled back, the caller does not call committed, and the keys are false
// positives until the next Rebuild. If the process dies before it calls committed, lookups still
// find the rows, provided that the transaction took no longer than RebuildOptions.Settle.
func (r *Redis) Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error) {
	keys = slices.Clone(keys)
	written, err := r.add(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		d, err := r.fetchDescriptor(ctx, r.longTimeout())
		if err != nil {
			r.counts.addErrors.Add(1)
			return r.wrapError(err)
		}
		if !d.coveredBy(written) {
			_, err = r.add(ctx, keys)
		}
		return err
	}, nil
}

// maxPart is the maximum number of keys that are added together. It limits the memory that an Add
// of more keys takes.
const maxPart = 1 << 16

// add adds keys, and returns the IDs of the generations that all of them were written to.
func (r *Redis) add(ctx context.Context, keys []string) (written map[string]bool, err error) {
	for part := range slices.Chunk(keys, maxPart) {
		targets, err := r.addAll(ctx, bitmap.HashesOf(part))
		if err != nil {
			r.counts.addErrors.Add(1)
			return nil, r.wrapError(err)
		}
		r.counts.added.Add(int64(len(part)))
		if written == nil {
			written = targets
		}
		// a generation that lacks this part does not count
		maps.DeleteFunc(written, func(id string, _ bool) bool { return !targets[id] })
	}
	return written, nil
}

// addAll writes keys to all generations that the descriptor names, and reads the descriptor again,
// until it names no generation without the keys. In the meantime, a rebuild may have begun a
// generation or activated one. A rebuild that begins later finds the rows in the table, because it
// waits for RebuildOptions.Settle before it reads. If a transaction takes longer than that, the
// function committed (see Inserting) reads the descriptor again, and adds its keys to the
// generations that lack them. If there is no filter, addAll writes nothing.
func (r *Redis) addAll(ctx context.Context, hashes []bitmap.Hash) (written map[string]bool, err error) {
	r.startWatch()
	d, err := r.currentDescriptor(ctx)
	if err != nil {
		return nil, err
	}
	written = make(map[string]bool)
	for {
		var missing []*generation
		for _, g := range d.writeTargets() {
			if !written[g.ID] {
				missing = append(missing, g)
			}
		}
		if d, err = r.addTo(ctx, d, missing, hashes); err != nil {
			return nil, err
		}
		for _, g := range missing {
			written[g.ID] = true
		}
		if d.coveredBy(written) {
			return written, nil
		}
	}
}

// addTo writes keys to generations, announces the keys, and then returns the present descriptor.
func (r *Redis) addTo(
	ctx context.Context, d *cachedDescriptor, generations []*generation, hashes []bitmap.Hash,
) (*cachedDescriptor, error) {
	if r.fitsOneTrip(generations, hashes) {
		d, err := r.addInOneTrip(ctx, d, generations, hashes)
		if !redis.HasErrorPrefix(err, "CROSSSLOT") {
			return d, err
		}
		r.clusterNode.Store(true) // the client connects to one node of a cluster
	}
	for _, g := range generations {
		if err := r.write(ctx, g, hashes); err != nil {
			return nil, err
		}
	}
	return r.announce(ctx, hashes)
}

// maxAnnounced is the maximum number of keys in one announcement.
const maxAnnounced = 1024

// announce announces keys that have been written, and then returns the present descriptor.
func (r *Redis) announce(ctx context.Context, hashes []bitmap.Hash) (*cachedDescriptor, error) {
	if replica := r.replica.Load(); replica != nil {
		replica.addAll(hashes)
	}
	sentAt, sent := time.Now(), r.watch.lastWatermark()
	var touched *redis.Cmd
	touch := func(ctx context.Context, name string) redis.Cmder {
		touched = redis.NewCmd(ctx, "eval", touchScript, 2, name, r.watermarks, r.watch.id)
		return touched
	}
	if err := r.bus.AnnounceBodies(ctx, r.key, announcements(hashes), touch); err != nil {
		return nil, err
	}
	reply, err := parseWatermarkReply(touched)
	if err != nil {
		return nil, err
	}
	return r.handleReply(reply, nil, sentAt, sent)
}

// handleReply checks the watermark in the reply to an add, and returns the present descriptor. The
// other arguments are from just before the add was sent: d is the cached descriptor, sentAt is
// the time, and sent is the last watermark.
func (r *Redis) handleReply(
	reply watermarkReply, d *cachedDescriptor, sentAt time.Time, sent watermark,
) (*cachedDescriptor, error) {
	r.checkWatermark(sent, reply)
	if reply.unchanged {
		return d, nil
	}
	return r.storeDescriptor(reply.raw, sentAt)
}

// announcements returns the messages that announce keys.
func announcements(hashes []bitmap.Hash) (bodies [][]byte) {
	for part := range slices.Chunk(hashes, maxAnnounced) {
		bodies = append(bodies, encodeHashes(part))
	}
	return bodies
}

// The maximum numbers of keys and of bits that one script adds. A script that adds more would block
// the server for too long. It would also have too many arguments for some services: Amazon
// ElastiCache Serverless accepts 3,999.
const (
	maxOneTripKeys = 64
	maxOneTripBits = 2000
)

// fitsOneTrip reports whether one script can add the keys to targets: they are few, and all
// keys of the filter in Redis are on one server.
func (r *Redis) fitsOneTrip(targets []*generation, hashes []bitmap.Hash) bool {
	bits := 0
	for _, g := range targets {
		bits += len(hashes) * int(g.K)
	}
	return len(hashes) <= maxOneTripKeys && bits <= maxOneTripBits && !r.conn.Cluster() && !r.clusterNode.Load()
}

// oneTripScript adds keys and announces them, if all keys of the filter are on one server. KEYS:
// the counter of announcements; the descriptor; the watermarks; then the segments. ARGV: the
// arguments of the announcement (4); the ID of the watermark; the beginning of the cached
// descriptor; its length minus 1; then for each segment its header, its tag, its size with the
// header, the number of bit offsets, and these in decimal. If there is nothing else to report,
// which is nearly always the case, it returns the number of the watermark. Otherwise it returns
// that number, the epoch, the descriptor, and the number of lost segments.
//
// The script accounts for most of the cost of an Add, so it reads as little as possible: a segment
// that ends in its tag is complete, so its header need not be read. Constants are strings, because
// Redis converts numbers slowly.
var oneTripScript = conn.NewScript(`
local call, ARGV, KEYS = redis.call, ARGV, KEYS
local function made(name, header, tag)` + segmentLua + `
  return allocated(name, header, tag)
end
local arg, missing = 8, 0
for key = 4, #KEYS do
  local name, header, tag, size, last = KEYS[key], ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], arg + 3 + ARGV[arg + 3]
  if call('GETRANGE', name, size, size + 8) == tag or made(name, header, tag) then
    for i = arg + 4, last do call('SETBIT', name, ARGV[i], '1') end
  else
    missing = missing + 1
  end
  arg = last + 1
end
` + invalidation.AnnounceLua + `
local n, known = call('HINCRBY', KEYS[3], ARGV[5], '1'), call('GETRANGE', KEYS[2], '0', ARGV[7]) == ARGV[6]
if n > 1 and known and missing == 0 then return n end
local epoch = n == 1 and (call('HGET', KEYS[3], '') or '0') or ''
return {n, epoch, call('GET', KEYS[2]) or '', missing}`)

// addInOneTrip is addTo in one round trip.
func (r *Redis) addInOneTrip(
	ctx context.Context, d *cachedDescriptor, targets []*generation, hashes []bitmap.Hash,
) (now *cachedDescriptor, err error) {
	err = r.bus.AnnounceBy(r.key, encodeHashes(hashes), func(key string, args []any) error {
		sentAt, sent := time.Now(), r.watch.lastWatermark()
		c := r.oneTripCall(key, args, d, targets, hashes)
		if r.runPipeline(ctx, r.longTimeout(), []*call{c}, "evalsha"); c.err != nil {
			return c.err
		}
		reply, err := parseWatermarkReply(c.cmd)
		if err == nil {
			r.counts.lostAdds.Add(reply.lostSegments)
			now, err = r.handleReply(reply, d, sentAt, sent)
		}
		return err
	})
	if replica := r.replica.Load(); replica != nil {
		replica.addAll(hashes) // not before the script: a copy that begins later fetches what Redis holds then
	}
	return now, err
}

// oneTripCall returns the call of oneTripScript. counter is the key that numbers announcements,
// and announcement has the arguments of the announcement.
func (r *Redis) oneTripCall(
	counter string, announcement []any, d *cachedDescriptor, targets []*generation, hashes []bitmap.Hash,
) *call {
	keys := append(make([]string, 0, 8), counter, r.key, r.watermarks)
	args := append(make([]any, 0, 32), announcement...)
	args = append(args, r.watch.id, d.raw[:min(len(d.raw), revisionBytes)], revisionBytes-1)
	for _, g := range targets {
		shape := g.shape()
		for _, p := range bySegment(shape, hashes) {
			keys = append(keys, segmentKey(r.options.Prefix, r.name, g.ID, p.segment))
			args = append(args, g.header(), g.tag(p.segment), headerBytes+g.Bits/8, len(p.indexes)*int(g.K))
			for _, i := range p.indexes {
				for j := range g.K {
					args = append(args, headerBits+shape.BitOffset(&hashes[i], j))
				}
			}
		}
	}
	return &call{script: oneTripScript, keys: keys, args: args}
}
