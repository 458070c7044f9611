package bloom

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
)

// Add adds a key. When it has returned nil, no lookup by a Redis filter that begins then misses it,
// in any process, nor one by a Replica that begins later than Options.MaxStaleness, as a rule some
// milliseconds. If Add returns an error, try again: it may be repeated.
//
// For a row that is not committed yet, Add is not enough: see Admit.
func (f *Redis) Add(ctx context.Context, key string) error { return f.AddMany(ctx, []string{key}) }

// AddMany is Add for many keys, in few trips.
func (f *Redis) AddMany(ctx context.Context, keys []string) error {
	_, err := f.add(ctx, keys)
	return err
}

// Admit is for keys whose rows are being inserted. Call Admit before the transaction commits, and
// committed, which it returns, after the commit:
//
//	committed, err := filter.Admit(ctx, keys)
//	if err != nil {
//		return err // the transaction must not commit
//	}
//	if err := tx.Commit(); err != nil {
//		return err
//	}
//	return committed(context.WithoutCancel(ctx))
//
// Once committed has returned nil, the keys are found as after Add, whatever has become of the
// filter meanwhile: a Rebuild that read the table between the two has not seen the rows. committed
// may be called again, after an error or not, and by several goroutines. Where the transaction is
// rolled back, committed is not called, and the keys are false positives until the next Rebuild. If
// the process dies before committed is called, the rows are found all the same, as long as the
// transaction took no longer than RebuildOptions.Settle.
func (f *Redis) Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error) {
	keys = slices.Clone(keys)
	written, err := f.add(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		d, err := f.fetch(ctx, f.allTries())
		if err != nil {
			f.counts.addErrors.Add(1)
			return f.failed(err)
		}
		if !d.covered(written) {
			_, err = f.add(ctx, keys)
		}
		return err
	}, nil
}

// add adds keys, and returns the generations that they were written to.
func (f *Redis) add(ctx context.Context, keys []string) (written map[string]bool, err error) {
	if len(keys) > 0 {
		written, err = f.addAll(ctx, hashesOf(keys))
	}
	if err != nil {
		f.counts.addErrors.Add(1)
		return nil, f.failed(err)
	}
	f.counts.added.Add(int64(len(keys)))
	return written, nil
}

// addAll writes keys to all known generations, then reads the descriptor, and repeats that until
// the descriptor names no generation that lacks the keys: a generation may have been begun, or have
// become the active one. A rebuild that begins later finds the rows in the table, because it waits
// for RebuildOptions.Settle before it reads. A row that is committed later than that is added by
// committed, which reads the descriptor again.
func (f *Redis) addAll(ctx context.Context, hashes []hash) (written map[string]bool, err error) {
	f.watching()
	d, err := f.current(ctx)
	if err != nil {
		return nil, err
	}
	written = make(map[string]bool)
	for {
		var missing []*generation
		for _, g := range d.addedTo() {
			if !written[g.ID] {
				missing = append(missing, g)
			}
		}
		if d, err = f.addTo(ctx, d, missing, hashes); err != nil {
			return nil, err
		}
		for _, g := range missing {
			written[g.ID] = true
		}
		if d.covered(written) {
			return written, nil
		}
	}
}

// addTo writes keys to generations, announces them, and returns the descriptor as it is after that.
func (f *Redis) addTo(ctx context.Context, d *known, to []*generation, hashes []hash) (*known, error) {
	if f.oneTrip(hashes) {
		d, err := f.addOnce(ctx, d, to, hashes)
		if !redis.HasErrorPrefix(err, "CROSSSLOT") {
			return d, err
		}
		f.apart.Store(true) // it is one node of a cluster
	}
	for _, g := range to {
		if err := f.write(ctx, g, hashes); err != nil {
			return nil, err
		}
	}
	return f.tell(ctx, hashes)
}

// maxTold is how many keys are announced by one message.
const maxTold = 1024

// tell announces keys that have been written, and returns the descriptor as it is after that.
func (f *Redis) tell(ctx context.Context, hashes []hash) (*known, error) {
	if r := f.copy.Load(); r != nil {
		r.apply(hashes)
	}
	at, sent := time.Now(), f.watch.sent()
	var touched *redis.Cmd
	touch := func(ctx context.Context, name string) redis.Cmder {
		touched = redis.NewCmd(ctx, "eval", touchScript, 2, name, f.marks, f.watch.id)
		return touched
	}
	if err := f.bus.Tell(ctx, f.key, announcements(hashes), touch); err != nil {
		return nil, err
	}
	reply, err := ackOf(touched)
	if err != nil {
		return nil, err
	}
	return f.acknowledged(reply, nil, at, sent)
}

// acknowledged takes the reply to an add that was sent at a time, when the mark was sent, and the
// descriptor was known to be d. It returns what the descriptor is now.
func (f *Redis) acknowledged(r ack, d *known, at time.Time, sent stamp) (*known, error) {
	f.marked(sent, r)
	if r.known {
		return d, nil
	}
	return f.learn(r.raw, at)
}

// announcements returns the messages that announce keys.
func announcements(hashes []hash) (bodies [][]byte) {
	for part := range slices.Chunk(hashes, maxTold) {
		bodies = append(bodies, encodeHashes(part))
	}
	return bodies
}

// maxOnce is how many keys are added in one step: more take a server too long for one script.
const maxOnce = 64

// oneTrip tells whether keys can be added in one step: all that it takes is on one server, and they
// are few.
func (f *Redis) oneTrip(hashes []hash) bool {
	return len(hashes) <= maxOnce && !f.conn.Cluster() && !f.apart.Load()
}

// onceScript adds keys where all that it takes is on one server, and tells of them, in one step.
// KEYS: of the announcements; the descriptor; the marks; then the segments. ARGV: what announces
// (4); the mark; the beginning of the known descriptor; its length; then for each segment its
// header, its tag, its size with the header, how many places, and these in decimal. It returns the
// number of the mark if there is nothing else to report, as nearly always; else the mark, the
// descriptor, and how many segments were lost.
//
// It is most of what an Add costs, so it asks as little as it can: a segment that ends in its tag
// is whole. Constants are strings, because Redis takes long to convert numbers.
var onceScript = conn.NewScript(`
local call, ARGV, KEYS = redis.call, ARGV, KEYS
local function made(name, header, tag)` + segments + `
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

// addOnce is addTo in one trip.
func (f *Redis) addOnce(ctx context.Context, d *known, to []*generation, hashes []hash) (now *known, err error) {
	err = f.bus.TellBy(f.key, encodeHashes(hashes), func(key string, args []any) error {
		at, sent := time.Now(), f.watch.sent()
		c := f.once(key, args, d, to, hashes)
		if f.trip(ctx, f.allTries(), []*call{c}, "evalsha"); c.err != nil {
			return c.err
		}
		reply, err := ackOf(c.cmd)
		if err == nil {
			f.counts.lostAdds.Add(reply.missing)
			now, err = f.acknowledged(reply, d, at, sent)
		}
		return err
	})
	if r := f.copy.Load(); r != nil {
		r.apply(hashes) // not before: a copy that is begun later fetches what Redis has then
	}
	return now, err
}

// once is the script with its keys and arguments, of which announces are the first.
func (f *Redis) once(numbers string, announces []any, d *known, to []*generation, hashes []hash) *call {
	keys := append(make([]string, 0, 8), numbers, f.key, f.marks)
	args := append(make([]any, 0, 32), announces...)
	args = append(args, f.watch.id, d.raw[:min(len(d.raw), stampBytes)], stampBytes-1)
	for _, g := range to {
		shape := g.shape()
		for _, p := range bySegment(shape, hashes) {
			keys = append(keys, segmentKey(f.options.Prefix, f.name, g.ID, p.segment))
			args = append(args, g.header(), g.tag(p.segment), headerBytes+g.Bits/8, len(p.keys)*int(g.K))
			for _, i := range p.keys {
				for j := range g.K {
					args = append(args, headerBits+shape.bit(&hashes[i], j))
				}
			}
		}
	}
	return &call{script: onceScript, keys: keys, args: args}
}
